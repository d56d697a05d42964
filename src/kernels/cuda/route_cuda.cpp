#include <ATen/ops/empty.h>

#include "kernels/cuda/call.h"
#include "kernels/cuda/lookup_kernels_cuda.h"
#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {

using namespace cuda;

Route route_rows_cuda(const at::Tensor& indices, c10::IntArrayRef bounds) {
  const int64_t n = indices.numel();
  const int64_t rows = bounds.back();
  if (!can_sort(n, rows) || n == 0) {
    return LookupKernels::composed().route(indices, bounds);
  }
  const Call call(indices);
  const at::Tensor list = indices.contiguous();
  const EntryMemory memory = entry_memory(call, n);
  C10_CUDA_CHECK(lookup_entries(
      integers_of(list),
      {0, rows, rows},
      /*padding=*/-1,
      memory.entries,
      call.report(),
      call.stream()));
  const SortedEntries entries = sorted_entries(call, memory, n, rows);
  const at::Tensor numbers = run_numbers(call, entries.sorted);
  const auto* const number_data =
      reinterpret_cast<const uint32_t*>(numbers.const_data_ptr<int32_t>());
  const auto longs = indices.options().dtype(at::kLong);
  const int64_t owners = static_cast<int64_t>(bounds.size()) - 1;
  at::Tensor ends = at::empty({owners + 1}, longs);
  C10_CUDA_CHECK(owner_ends(
      entries.sorted,
      number_data,
      bounds.data() + 1,
      owners,
      ends.mutable_data_ptr<int64_t>(),
      call.stream()));
  Route route;
  route.place = at::empty(indices.sizes(), longs);
  C10_CUDA_CHECK(places_among(
      entries.sorted,
      number_data,
      route.place.mutable_data_ptr<int64_t>(),
      call.stream()));
  const at::Tensor on_host = ends.cpu();  // waits
  call.finish();
  const auto* const end = on_host.const_data_ptr<int64_t>();
  for (int64_t o = 0; o < owners; ++o) {
    route.counts.push_back(end[o] - (o == 0 ? 0 : end[o - 1]));
  }
  route.wanted =
      distinct_row_list(call, entries.sorted, numbers, 0, end[owners]);
  return route;
}

}  // namespace tessera::detail
