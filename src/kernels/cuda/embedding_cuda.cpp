#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "kernels/cuda/call.h"
#include "kernels/cuda/lookup.h"
#include "kernels/cuda/lookup_kernels_cuda.h"
#include "kernels/cuda/renorm.h"
#include "kernels/cuda/row_gradient.h"
#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {

namespace {

using namespace cuda;

Part part_of(const HeldRows& held) {
  return {held.first_row, held.rows, held.table_rows};
}

SortedEntries sorted_lookup(
    const Call& call, const HeldRows& held, int64_t padding) {
  const at::Tensor list = held.indices.contiguous();
  const int64_t n = list.numel();
  const EntryMemory memory = entry_memory(call, n);
  C10_CUDA_CHECK(lookup_entries(
      integers_of(list),
      part_of(held),
      padding,
      memory.entries,
      call.report(),
      call.stream()));
  return sorted_entries(call, memory, n, held.rows);
}

void add_gradients(
    const Call& call,
    const Sorted& sorted,
    Scalar dtype,
    const at::Tensor& grad,
    const GradientOut& out) {
  const int64_t width = grad.size(-1);
  const at::Tensor ordered = grad.contiguous();
  const at::Tensor scratch =
      call.memory(run_scratch(sorted.count, width, sum_bytes(dtype)));
  C10_CUDA_CHECK(lookup_gradient(
      {sorted, scratch.mutable_data_ptr(), call.stream()},
      {dtype, ordered.const_data_ptr(), width},
      out));
}

at::Tensor lookup_forward_cuda(const at::Tensor& weight, const HeldRows& held) {
  const at::Tensor& indices = held.indices;
  const Call call(weight);
  const int64_t width = weight.size(1);
  const at::Tensor table =
      weight.stride(1) == 1 || width <= 1 ? weight : weight.contiguous();
  const at::Tensor list = indices.contiguous();
  at::DimVector sizes(indices.sizes());
  sizes.push_back(width);
  at::Tensor out = at::empty(sizes, weight.options());
  const auto bytes = static_cast<int64_t>(weight.element_size());
  C10_CUDA_CHECK(lookup(
      {table.const_data_ptr(),
       table.stride(0) * bytes,
       width * bytes,
       part_of(held),
       integers_of(list),
       out.mutable_data_ptr()},
      call.report(),
      call.stream()));
  call.finish();
  return out;
}

at::Tensor lookup_backward_cuda(
    const at::Tensor& grad,
    const HeldRows& held,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  const auto dtype = scalar_of(grad.scalar_type());
  const int64_t n = held.indices.numel();
  if (!dtype.has_value() || !can_sort(n, held.rows)) {
    return LookupKernels::composed().backward(
        grad, held, padding_idx, scale_grad_by_freq);
  }
  const Call call(grad);
  at::Tensor out = at::zeros({held.rows, grad.size(-1)}, grad.options());
  if (n > 0) {
    const SortedEntries entries = sorted_lookup(call, held, padding_idx);
    add_gradients(
        call,
        entries.sorted,
        *dtype,
        grad,
        {out.mutable_data_ptr(), nullptr, scale_grad_by_freq});
  }
  call.finish();
  return out;
}

at::Tensor lookup_sparse_backward_cuda(
    const at::Tensor& grad, const HeldRows& held, int64_t padding_idx) {
  const auto dtype = scalar_of(grad.scalar_type());
  const int64_t n = held.indices.numel();
  if (!dtype.has_value() || !can_sort(n, held.rows) || n == 0) {
    return LookupKernels::composed().sparse_backward(grad, held, padding_idx);
  }
  const Call call(grad);
  const SortedEntries entries = sorted_lookup(call, held, padding_idx);
  const at::Tensor numbers = run_numbers(call, entries.sorted);
  const auto count = numbers.select(0, n - 1).item<int32_t>();
  call.finish();
  const at::Tensor values = at::empty({count, grad.size(-1)}, grad.options());
  add_gradients(
      call,
      entries.sorted,
      *dtype,
      grad,
      {values.mutable_data_ptr(),
       reinterpret_cast<const uint32_t*>(numbers.const_data_ptr<int32_t>()),
       false});
  return at::_sparse_coo_tensor_unsafe(
      distinct_row_list(call, entries.sorted, numbers, 0, count).unsqueeze(0),
      values,
      {held.rows, grad.size(-1)},
      grad.options().layout(at::kSparse),
      /*is_coalesced=*/true);
}

void renorm_rows_cuda(
    const at::Tensor& weight, const HeldRows& held, const NormLimit& limit) {
  const auto dtype = scalar_of(weight.scalar_type());
  const int64_t n = held.indices.numel();
  if (!dtype.has_value() || (weight.stride(1) != 1 && weight.size(1) > 1) ||
      !can_sort(n, held.rows)) {
    renorm_rows_composed(weight, held, limit);
    return;
  }
  if (n == 0) {
    return;
  }
  const Call call(weight);
  const SortedEntries entries = sorted_lookup(call, held, /*padding=*/-1);
  C10_CUDA_CHECK(renorm_rows(
      {weight.mutable_data_ptr(),
       weight.stride(0),
       weight.size(1),
       *dtype,
       limit.max_norm,
       limit.norm_type},
      entries.sorted,
      call.stream()));
}

}  // namespace

const LookupKernels& LookupKernels::cuda() {
  static constexpr LookupKernels kernels{
      lookup_forward_cuda,
      lookup_backward_cuda,
      lookup_sparse_backward_cuda,
      route_rows_cuda,
      start_route_cuda,
      renorm_rows_cuda};
  return kernels;
}

}  // namespace tessera::detail
