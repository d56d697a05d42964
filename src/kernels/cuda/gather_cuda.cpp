#include "kernels/cuda/gather_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include "kernels/cuda/call.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/row_gradient.h"
#include "kernels/gather/gather_any_device.h"

namespace tessera::detail {

namespace {

using namespace cuda;

// `index` is contiguous.
GatherPlaces places_of(
    const at::Tensor& index,
    int64_t dim,
    c10::IntArrayRef part_sizes,
    c10::IntArrayRef part_strides,
    int64_t first,
    int64_t size) {
  GatherPlaces places{};
  places.index = integers_of(index);
  places.dims = static_cast<int>(index.dim());
  places.dim = static_cast<int>(dim);
  for (int64_t d = 0; d < index.dim(); ++d) {
    places.sizes[d] = index.size(d);
    places.strides[d] = part_strides[d];
  }
  places.first = first;
  places.held = part_sizes.empty() ? 1 : part_sizes[dim];
  places.size = size;
  return places;
}

}  // namespace

at::Tensor gather_part_cuda(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    int64_t first,
    int64_t size) {
  if (self.dim() > kMostDims) {
    return gather_part_any_device(self, dim, index, first, size);
  }
  const Call call(self);
  const at::Tensor list = index.contiguous();
  at::Tensor out = at::empty(index.sizes(), self.options());
  C10_CUDA_CHECK(gather(
      places_of(list, dim, self.sizes(), self.strides(), first, size),
      self.const_data_ptr(),
      static_cast<int>(self.element_size()),
      out.mutable_data_ptr(),
      call.report(),
      call.stream()));
  call.finish();
  return out;
}

at::Tensor gather_part_backward_cuda(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& index,
    c10::IntArrayRef local_sizes,
    int64_t first,
    int64_t size) {
  const auto dtype = scalar_of(grad.scalar_type());
  const int64_t n = index.numel();
  const int64_t elements = c10::multiply_integers(local_sizes);
  if (!dtype.has_value() || !can_sort(n, elements) || n == 0 ||
      index.dim() > kMostDims) {
    return gather_part_backward_any_device(
        grad, dim, index, local_sizes, first, size);
  }
  const Call call(grad);
  const at::Tensor list = index.contiguous();
  const at::Tensor ordered = grad.contiguous();
  at::Tensor out = at::zeros(local_sizes, grad.options());
  const EntryMemory memory = entry_memory(call, n);
  C10_CUDA_CHECK(gather_entries(
      places_of(list, dim, out.sizes(), out.strides(), first, size),
      elements,
      memory.entries,
      call.report(),
      call.stream()));
  const SortedEntries entries = sorted_entries(call, memory, n, elements);
  const at::Tensor scratch = call.memory(run_scratch(n, 1, sum_bytes(*dtype)));
  C10_CUDA_CHECK(lookup_gradient(
      entries.sorted,
      *dtype,
      ordered.const_data_ptr(),
      /*width=*/1,
      {out.mutable_data_ptr(), nullptr, false},
      scratch.mutable_data_ptr(),
      call.stream()));
  call.finish();
  return out;
}

}  // namespace tessera::detail
