#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "kernels/cuda/call.h"
#include "kernels/cuda/lookup_kernels_cuda.h"
#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {

using namespace cuda;

namespace {

// What is left to do once the host knows how many rows there are.
struct Pending {
  SortedEntries entries;
  at::Tensor numbers;
  at::Tensor place;
  int64_t owners;

  Route finish(const int64_t* ends) const {
    Route route;
    route.place = place;
    for (int64_t o = 0; o < owners; ++o) {
      route.counts.push_back(ends[o] - (o == 0 ? 0 : ends[o - 1]));
    }
    route.left_out = ends[owners + 1] != 0;
    const Call call(place);
    route.wanted =
        distinct_row_list(call, entries.sorted, numbers, 0, ends[owners]);
    return route;
  }
};

}  // namespace

StartedRoute start_route_cuda(
    const at::Tensor& indices, c10::IntArrayRef bounds, int64_t left_out) {
  const int64_t n = indices.numel();
  const int64_t rows = bounds.back();
  if (!can_sort(n, rows) || n == 0) {
    return started(route_without(
        LookupKernels::composed().route, indices, bounds, left_out));
  }
  const Call call(indices);
  const at::Tensor list = indices.contiguous();
  const EntryMemory memory = entry_memory(call, n);
  C10_CUDA_CHECK(lookup_entries(
      integers_of(list),
      {0, rows, rows},
      left_out,
      memory.entries,
      call.report(),
      call.stream()));
  SortedEntries entries = sorted_entries(call, memory, n, rows);
  at::Tensor numbers = run_numbers(call, entries.sorted);
  const auto* const number_data =
      reinterpret_cast<const uint32_t*>(numbers.const_data_ptr<int32_t>());
  const auto longs = indices.options().dtype(at::kLong);
  const int64_t owners = static_cast<int64_t>(bounds.size()) - 1;
  // Then whether some are left out.
  at::Tensor ends = at::zeros({owners + 2}, longs);
  C10_CUDA_CHECK(owner_ends(
      entries.sorted,
      number_data,
      bounds.data() + 1,
      owners,
      ends.mutable_data_ptr<int64_t>(),
      call.stream()));
  if (left_out >= 0) {
    ends.select(0, owners + 1).copy_(list.eq(left_out).any());
  }
  at::Tensor place = at::empty(indices.sizes(), longs);
  C10_CUDA_CHECK(places_among(
      entries.sorted,
      number_data,
      place.mutable_data_ptr<int64_t>(),
      call.stream()));
  return {
      std::move(ends),
      [pending = Pending{
           std::move(entries),
           std::move(numbers),
           std::move(place),
           owners}](const int64_t* counts) { return pending.finish(counts); }};
}

Route route_rows_cuda(const at::Tensor& indices, c10::IntArrayRef bounds) {
  return finish_route(start_route_cuda(indices, bounds, /*left_out=*/-1));
}

}  // namespace tessera::detail
