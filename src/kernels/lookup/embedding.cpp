#include "kernels/lookup/embedding.h"

#include <c10/util/Exception.h>

#include "kernels/kernels_for.h"
#include "kernels/lookup/embedding_index.h"
#include "kernels/lookup/lookup_kernels.h"
#include "kernels/resolved.h"

namespace tessera::detail {
namespace {

void check_backward(const at::Tensor& grad, const HeldRows& held) {
  const at::Tensor& indices = held.indices;
  constexpr const char* kName = "embedding_backward";
  check_index_dtype(kName, indices);
  check_held_range(kName, held.first_row, held.rows, held.table_rows);
  TORCH_CHECK_TYPE(
      grad.is_floating_point() || grad.is_complex(),
      "[embedding_backward] expected a floating point or complex gradient but "
      "got ",
      grad.scalar_type());
  TORCH_CHECK_VALUE(
      grad.dim() == indices.dim() + 1 &&
          grad.sizes().slice(0, indices.dim()) == indices.sizes(),
      "[embedding_backward] expected a gradient of the shape of the indices, ",
      indices.sizes(),
      ", and one dimension more but got ",
      grad.sizes());
}

}  // namespace

at::Tensor lookup_rows(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t table_rows) {
  TORCH_CHECK_VALUE(
      weight.dim() == 2,
      "[embedding] expected a weight of 2 dimensions but got ",
      weight.dim());
  check_index_dtype("embedding", indices);
  check_held_range("embedding", first_row, weight.size(0), table_rows);
  const HeldRows held{indices, first_row, weight.size(0), table_rows};
  const auto& kernels = kernels_for<LookupKernels>(weight);
  return weight.is_conj() || weight.is_neg()
             ? kernels.forward(resolved(weight), held)
             : kernels.forward(weight, held);
}

at::Tensor lookup_rows_backward(
    const at::Tensor& grad,
    const HeldRows& held,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  check_backward(grad, held);
  return kernels_for<LookupKernels>(grad).backward(
      resolved(grad), held, padding_idx, scale_grad_by_freq);
}

at::Tensor lookup_rows_sparse_backward(
    const at::Tensor& grad, const HeldRows& held, int64_t padding_idx) {
  check_backward(grad, held);
  return kernels_for<LookupKernels>(grad).sparse_backward(
      resolved(grad), held, padding_idx);
}

}  // namespace tessera::detail
