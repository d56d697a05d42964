#include "kernels/lookup/route.h"
#include "kernels/device_errors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/kernels_for.h"
#include "kernels/lookup/embedding_index.h"
#include "kernels/lookup/embedding_sorted.h"
#include "kernels/lookup/lookup_kernels_cpu.h"

namespace tessera::detail {
namespace {

at::Tensor empty_int64(c10::IntArrayRef sizes) {
  return at::Tensor(at::detail::empty_cpu(
      sizes,
      at::kLong,
      /*pin_memory=*/false,
      /*memory_format_opt=*/std::nullopt));
}

// Writes the distinct rows and where each index stands among them; returns how
// many there are.
int64_t number_rows(const SortedRows& sorted, int64_t* wanted, int64_t* place) {
  int64_t rank = -1;
  int64_t last = -1;
  for (int64_t i = 0; i < sorted.size(); ++i) {
    const int64_t row = sorted.row(i);
    rank += static_cast<int64_t>(row != last);
    last = row;
    wanted[rank] = row;
    place[sorted.position(i)] = rank;
  }
  return rank + 1;
}

}  // namespace

Route route_rows_cpu(const at::Tensor& indices, c10::IntArrayRef bounds) {
  const int64_t n = indices.numel();
  const at::Tensor ordered = indices.contiguous();
  const SortedRows sorted = with_index_data(ordered, [&](const auto* index) {
    return SortedRows(index, n, {0, bounds.back(), bounds.back(), -1});
  });
  Route route;
  route.wanted = empty_int64({n});
  route.place = empty_int64(indices.sizes());
  auto* const wanted = route.wanted.mutable_data_ptr<int64_t>();
  const int64_t distinct =
      number_rows(sorted, wanted, route.place.mutable_data_ptr<int64_t>());
  // Shorter in the same memory: counting first would be one pass more.
  route.wanted.unsafeGetTensorImpl()->set_sizes_contiguous({distinct});

  const int64_t* begin = wanted;
  const int64_t* const all = wanted + distinct;
  for (size_t owner = 0; owner + 1 < bounds.size(); ++owner) {
    const int64_t* const end = std::lower_bound(begin, all, bounds[owner + 1]);
    route.counts.push_back(end - begin);
    begin = end;
  }
  return route;
}

namespace {

void check_route(const at::Tensor& indices, c10::IntArrayRef bounds) {
  check_index_dtype("embedding", indices);
  TORCH_INTERNAL_ASSERT(
      !bounds.empty() && bounds[0] == 0 &&
          std::is_sorted(bounds.begin(), bounds.end()),
      "the rows of owners must ascend from 0: ",
      bounds);
}

}  // namespace

Route route_without(
    decltype(route_rows)* route_all,
    const at::Tensor& indices,
    c10::IntArrayRef bounds,
    int64_t left_out) {
  if (left_out < 0) {
    return route_all(indices, bounds);
  }
  const at::Tensor taken = indices.ne(left_out);
  const at::Tensor rest = indices.masked_select(taken);
  Route route = route_all(rest, bounds);
  route.place =
      at::full(indices.sizes(), route.wanted.size(0), route.place.options())
          .masked_scatter_(taken, route.place);
  route.left_out = rest.numel() < indices.numel();
  return route;
}

Route route_rows(const at::Tensor& indices, c10::IntArrayRef bounds) {
  check_route(indices, bounds);
  return kernels_for<LookupKernels>(indices).route(indices, bounds);
}

Route route_other_rows(
    const at::Tensor& indices, c10::IntArrayRef bounds, int64_t left_out) {
  check_route(indices, bounds);
  const auto& kernels = kernels_for<LookupKernels>(indices);
  return kernels.begin_route != nullptr
             ? finish_route(kernels.begin_route(indices, bounds, left_out))
             : route_without(kernels.route, indices, bounds, left_out);
}

StartedRoute started(Route route) {
  const auto options = route.wanted.options();
  return {at::empty({0}, options), [route = std::move(route)](const int64_t*) {
            return route;
          }};
}

StartedRoute start_route(
    const at::Tensor& indices, c10::IntArrayRef bounds, int64_t left_out) {
  check_route(indices, bounds);
  const auto& kernels = kernels_for<LookupKernels>(indices);
  return kernels.begin_route != nullptr
             ? kernels.begin_route(indices, bounds, left_out)
             : started(route_without(kernels.route, indices, bounds, left_out));
}

Route finish_route(const StartedRoute& started) {
  const at::Tensor counts = started.counts.cpu();  // waits
  raise_device_errors();
  return started.finish(counts.const_data_ptr<int64_t>());
}

}  // namespace tessera::detail
