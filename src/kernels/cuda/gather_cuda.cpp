#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include "kernels/cuda/call.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/row_gradient.h"
#include "kernels/gather/gather_kernels.h"

namespace tessera::detail {

namespace {

using namespace cuda;

// `part.index` is contiguous.
GatherPlaces places_of(
    const HeldPlaces& part,
    c10::IntArrayRef part_sizes,
    c10::IntArrayRef part_strides) {
  const auto& [dim, index, first, size] = part;
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

at::Tensor gather_cuda(const at::Tensor& self, const HeldPlaces& part) {
  if (self.dim() > kMostDims) {
    return GatherKernels::composed().forward(self, part);
  }
  const Call call(self);
  const at::Tensor list = part.index.contiguous();
  at::Tensor out = at::empty(list.sizes(), self.options());
  C10_CUDA_CHECK(gather(
      places_of(
          {part.dim, list, part.first, part.size},
          self.sizes(),
          self.strides()),
      {self.const_data_ptr(),
       static_cast<int>(self.element_size()),
       out.mutable_data_ptr()},
      call.launch()));
  call.finish();
  return out;
}

at::Tensor gather_backward_cuda(
    const at::Tensor& grad,
    const HeldPlaces& part,
    c10::IntArrayRef local_sizes) {
  const auto dtype = scalar_of(grad.scalar_type());
  const int64_t n = part.index.numel();
  const int64_t elements = c10::multiply_integers(local_sizes);
  if (!dtype.has_value() || !can_sort(n, elements) || n == 0 ||
      part.index.dim() > kMostDims) {
    return GatherKernels::composed().backward(grad, part, local_sizes);
  }
  const Call call(grad);
  const at::Tensor list = part.index.contiguous();
  const at::Tensor ordered = grad.contiguous();
  at::Tensor out = at::zeros(local_sizes, grad.options());
  const EntryMemory memory = entry_memory(call, n);
  C10_CUDA_CHECK(gather_entries(
      places_of(
          {part.dim, list, part.first, part.size}, out.sizes(), out.strides()),
      elements,
      memory.entries,
      call.launch()));
  const SortedEntries entries = sorted_entries(call, memory, n, elements);
  const at::Tensor scratch = call.memory(run_scratch(n, 1, sum_bytes(*dtype)));
  C10_CUDA_CHECK(lookup_gradient(
      {entries.sorted, scratch.mutable_data_ptr(), call.stream()},
      {*dtype, ordered.const_data_ptr(), /*width=*/1},
      {out.mutable_data_ptr(), nullptr, false}));
  call.finish();
  return out;
}

}  // namespace

const GatherKernels& GatherKernels::cuda() {
  static constexpr GatherKernels kernels{gather_cuda, gather_backward_cuda};
  return kernels;
}

}  // namespace tessera::detail
