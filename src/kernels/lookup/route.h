// Which rows of a table to ask of whom, where several owners hold a range of
// its rows each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>

namespace tessera::detail {

struct Route {
  // int64, 1-d: the distinct indices, ascending, so owner after owner.
  at::Tensor wanted;
  // How many of them each owner holds.
  c10::SmallVector<int64_t, 5> counts;
  // int64, of the shape of `indices`, contiguous: where each index stands in
  // `wanted`, so that wanted[place] == indices.
  at::Tensor place;
  // Whether some indices were left out: see route_other_rows.
  bool left_out = false;
};

// Owner c holds the rows [bounds[c], bounds[c + 1]) of a table of bounds.back()
// rows. Requires: bounds ascend (an owner may hold nothing), bounds[0] == 0.
// `indices` is int32 or int64 (c10::TypeError otherwise), of any shape. Throws
// c10::IndexError, which names the first bad index, if one is outside the
// table. Takes memory of the order of `indices`. Does not communicate.
Route route_rows(const at::Tensor& indices, c10::IntArrayRef bounds);

// As route_rows, of the indices that are not `left_out` (-1: of all): the place
// of those is the number of rows wanted.
Route route_other_rows(
    const at::Tensor& indices, c10::IntArrayRef bounds, int64_t left_out);

// A route whose counts may still be on their way from a device, so that a
// caller who waits for more than one thing waits once.
struct StartedRoute {
  // 1-d, int64, on the device: what finish() must be told. Maybe of no
  // elements.
  at::Tensor counts;
  // To be called once, with `counts` on the host, after raise_device_errors().
  std::function<Route(const int64_t* counts)> finish;
};

// Begins route_other_rows.
StartedRoute start_route(
    const at::Tensor& indices, c10::IntArrayRef bounds, int64_t left_out);
// Waits for the device. Throws c10::IndexError for a bad index.
Route finish_route(const StartedRoute& started);

}  // namespace tessera::detail
