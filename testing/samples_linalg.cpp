// Batches of matrices, distances, products of three, Fourier transforms.
#include "testing/samples.h"

namespace tessera::testing {

void add_linalg_samples(Samples& samples) {
  const auto matrices = t({4, 3, 3});
  for (const char* op :
       {"aten::linalg_inv_ex",
        "aten::linalg_lu",
        "aten::linalg_lu_factor_ex",
        "aten::linalg_qr",
        "aten::_linalg_det",
        "aten::_linalg_slogdet"}) {
    samples.push_back({op, {matrices}});
  }
  samples.push_back({"aten::linalg_matrix_exp", {matrices.unit()}});
  // Factors are defined up to signs, so that their gradients are not compared.
  for (const char* op :
       {"aten::_linalg_svd",
        "aten::_linalg_eigh",
        "aten::linalg_cholesky_ex"}) {
    samples.push_back({op, {matrices}, "", true});
  }
  samples.push_back({"aten::linalg_svdvals", {t({4, 3, 5})}, "batch"});
  samples.push_back({"aten::_linalg_svd", {matrices, true, false}, "values"});
  samples.push_back({"aten::_linalg_eigh", {matrices, "L", false}, "values"});
  samples.push_back({"aten::linalg_cholesky", {t({4, 1, 1}).positive()}});
  samples.push_back({"aten::cholesky", {t({4, 1, 1}).positive()}});
  samples.push_back({"aten::linalg_det", {matrices}});
  samples.push_back({"aten::linalg_slogdet", {matrices}});
  samples.push_back({"aten::linalg_inv", {matrices}});
  samples.push_back({"aten::linalg_solve", {matrices, t({4, 3, 2})}});
  samples.push_back({"aten::linalg_solve", {matrices, t({4, 3})}, "vectors"});
  samples.push_back({"aten::_linalg_solve_ex", {matrices, t({4, 3, 2})}});
  samples.push_back(
      {"aten::_linalg_solve_ex",
       {t({3, 3}), t({4, 3, 2})},
       "one matrix for all"});
  samples.push_back(
      {"aten::linalg_solve_triangular", {matrices, t({4, 3, 2}), true}});
  samples.push_back(
      {"aten::linalg_solve_triangular",
       {matrices, t({3, 2}), false},
       "broadcast"});
  const auto tall = t({4, 5, 3});
  samples.push_back({"aten::linalg_pinv", {tall, 1e-8}});
  samples.push_back(
      {"aten::linalg_pinv.atol_rtol_tensor",
       {tall, t({4}).positive(), none()},
       "limits"});
  const char* least_squares = "aten::linalg_lstsq";
  for (const char* driver : {"gels", "gelsy", "gelsd"}) {
    samples.push_back(
        {least_squares, {tall, t({4, 5, 2}), none(), driver}, driver});
  }
  // Outside the mesh: the sizes of its results depend on the values.
  samples.back().refusal = "aten::linalg_lstsq.out";
  samples.push_back({least_squares, {tall, t({4, 5})}, "vectors"});
  samples.push_back({least_squares, {t({5, 3}), t({5, 4})}, "one matrix"});
  samples.push_back(
      {least_squares,
       {t({4, 3, 5}), t({4, 3, 2}), none(), "gelss"},
       "wide, gelss"});
  samples.push_back(
      {"tessera::least_squares",
       {tall, t({4, 5, 2}), none(), 0, true, false, false},
       "",
       true});
  samples.push_back(
      {"tessera::least_squares",
       {t({4, 3, 5}), t({4, 3, 2}), none(), 2, false, true, true},
       "singular values",
       true});
  samples.push_back({"aten::triangular_solve", {t({4, 3, 2}), matrices}});
  samples.push_back({"aten::linalg_cross", {t({4, 3, 5}), t({4, 3, 5}), 1}});
  samples.push_back(
      {"aten::linalg_cross", {t({4, 1, 3}), t({4, 5, 3})}, "broadcast"});
  samples.push_back({"aten::cdist", {t({4, 5, 3}), t({4, 6, 3}), 2.0}});
  samples.push_back(
      {"aten::cdist", {t({5, 3}), t({4, 6, 3}), 2.0}, "broadcast"});
  samples.push_back(
      {"aten::cdist", {t({4, 5, 3}), t({1, 6, 3}), 2.0}, "one for all"});
  samples.push_back(
      {"aten::_cdist_forward", {t({4, 5, 3}), t({4, 6, 3}), 1.0, none()}});
  samples.push_back(
      {"aten::_cdist_backward",
       {t({4, 5, 6}), t({4, 5, 3}), t({4, 6, 3}), 2.0, t({4, 5, 6}).positive()},
       "",
       true});
  samples.push_back(
      {"aten::bilinear", {t({4, 3}), t({4, 5}), t({6, 3, 5}), t({6})}});
  samples.push_back(
      {"aten::_trilinear",
       {t({4, 3}),
        t({6, 3, 5}),
        t({4, 5}),
        dims({1, 3}),
        dims({0}),
        dims({1, 2}),
        dims({2, 3})}});
  for (const char* op :
       {"aten::geqrf", "aten::linalg_eig", "aten::_linalg_eigvals"}) {
    samples.push_back({op, {matrices}, "", true});
  }
  samples.push_back({"aten::linalg_ldl_factor_ex", {matrices}, "", true});
  samples.push_back(
      {"aten::linalg_householder_product",
       {t({4, 5, 3}), t({4, 3})},
       "",
       true});
  const auto pivots = indices({4, 3}, 3).as(at::kInt).with(Values::Bound);
  samples.push_back({"aten::lu_unpack", {matrices, pivots}, "", true});
  samples.push_back(
      {"aten::linalg_lu_solve", {matrices, pivots, t({4, 3, 2})}, "", true});
  samples.push_back(
      {"aten::linalg_ldl_solve", {matrices, pivots, t({4, 3, 2})}, "", true});
  samples.push_back(
      {"aten::cholesky_inverse", {matrices.positive()}, "", true});
  samples.push_back(
      {"aten::cholesky_solve", {t({4, 3, 2}), matrices.positive()}, "", true});
  samples.push_back(
      {"aten::_cholesky_solve_helper",
       {t({4, 3, 2}), matrices.positive(), false},
       "",
       true});
  samples.push_back({"aten::linalg_svdvals", {matrices}});
  samples.push_back({"aten::linalg_eigvalsh", {matrices}});
  // Formulas of these make plain tensors; torch.fft's are tried in Python.
  const auto complex = t({4, 6, 3}).as(at::kComplexDouble);
  samples.push_back(
      {"aten::_fft_r2c", {t({4, 6, 5}), dims({2}), 0, true}, "", true});
  samples.push_back(
      {"aten::_fft_c2c", {complex, dims({1}), 0, true}, "", true});
  samples.push_back({"aten::_fft_c2r", {complex, dims({2}), 0, 5}, "", true});
}

}  // namespace tessera::testing
