// Determinants and solutions. ATen factors a matrix or its transpose, depending
// on its strides, and its formulas ask the matrix which it was: shards must
// have the order of strides of the whole tensor.
#include <ATen/ops/contiguous.h>
#include <ATen/ops/linalg_householder_product_ops.h>
#include <ATen/ops/linalg_matrix_exp_ops.h>
#include <ATen/ops/ormqr_ops.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <tuple>

#include "dispatch/autograd.h"
#include "dispatch/own_op.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/by_formula.h"
#include "ops/kept_shards.h"
#include "tessera/shard_math.h"

namespace tessera::detail {
namespace {

// Matrices whole, batches sharded as they are where every rank has some.
Placements whole_matrices(const Spec& spec) {
  const int64_t batch = spec.dim() - 2;
  const auto placements =
      kept_shards(spec.placements, [&](int64_t dim) { return dim < batch; });
  bool some_rank_has_none = false;
  for (int64_t d = 0; d < batch; ++d) {
    some_rank_has_none |=
        evenness(spec.sizes[d], d, spec.mesh, placements) == Evenness::Any;
  }
  return some_rank_has_none ? Placements(spec.mesh.ndim(), Replicate())
                            : placements;
}

at::Tensor in_own_order(const at::Tensor& matrices) {
  if (!is_dtensor(matrices) || matrices.dim() < 2) {
    return matrices;
  }
  const auto whole = redistribute(
      matrices,
      whole_matrices(*distributed_meta(matrices).spec),
      "aten::linalg");
  return matrices.is_contiguous() ? whole.contiguous()
                                  : whole.mT().contiguous().mT();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linalg_det(
    const at::Tensor& self) {
  static const OpInfo& op = aten_op("_linalg_det");
  return tensors_of<std::tuple<at::Tensor, at::Tensor, at::Tensor>>(
      run_by_rule(op, in_own_order(self)));
}

using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

FourTensors linalg_slogdet(const at::Tensor& self) {
  static const OpInfo& op = aten_op("_linalg_slogdet");
  return tensors_of<FourTensors>(run_by_rule(op, in_own_order(self)));
}

FourTensors linalg_solve_ex(
    const at::Tensor& self,
    const at::Tensor& right,
    bool left,
    bool check_errors) {
  static const OpInfo& op = aten_op("_linalg_solve_ex");
  return tensors_of<FourTensors>(
      run_by_rule(op, in_own_order(self), right, left, check_errors));
}

// Products of reflections: their formulas write parts of matrices in place.
// Operands and gradients have whole matrices before that.
at::Tensor for_formula(const at::Tensor& tensor, const Placements& placements) {
  return redistribute(tensor, placements, "aten::linalg");
}

bool records_any(std::initializer_list<at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), is_dtensor) &&
         std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
           return records(tensor);
         });
}

at::Tensor recorded_householder_product(
    c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& tau) {
  using Op = at::_ops::linalg_householder_product;
  if (!records_any({input, tau}) || input.dim() < 2) {
    return by_formula<Op>(keys, input, tau);
  }
  const auto placements = whole_matrices(*distributed_meta(input).spec);
  return with_grad_in_layout(by_formula<Op>(
      keys, for_formula(input, placements), for_formula(tau, placements)));
}

at::Tensor recorded_ormqr(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    const at::Tensor& tau,
    const at::Tensor& other,
    bool left,
    bool transpose) {
  using Op = at::_ops::ormqr;
  if (!records_any({self, tau, other}) || self.dim() < 2) {
    return by_formula<Op>(keys, self, tau, other, left, transpose);
  }
  const auto placements = whole_matrices(*distributed_meta(self).spec);
  return with_grad_in_layout(by_formula<Op>(
      keys,
      for_formula(self, placements),
      for_formula(tau, placements),
      for_formula(other, placements),
      left,
      transpose));
}

// The formula of the tangent writes into plain zeros that it makes itself.
at::Tensor recorded_matrix_exp(
    c10::DispatchKeySet keys, const at::Tensor& self) {
  std::optional<ImplicitScope> implicit;
  if (has_tangent(self)) {
    implicit.emplace();
  }
  return by_formula<at::_ops::linalg_matrix_exp>(keys, self);
}

}  // namespace

void register_factors(OpRegistry& ops) {
  ops.composed("_linalg_det", &linalg_det);
  ops.composed("_linalg_slogdet", &linalg_slogdet);
  ops.composed("_linalg_solve_ex", &linalg_solve_ex);
  ops.above_autograd(
      "linalg_householder_product", TORCH_FN(recorded_householder_product));
  ops.above_autograd("ormqr", TORCH_FN(recorded_ormqr));
  ops.above_autograd("linalg_matrix_exp", TORCH_FN(recorded_matrix_exp));
}

}  // namespace tessera::detail
