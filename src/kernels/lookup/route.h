// Which rows of a table to ask of whom, where several owners hold a range of
// its rows each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace tessera::detail {

struct Route {
  // int64, 1-d: the distinct indices, ascending, so owner after owner.
  at::Tensor wanted;
  // How many of them each owner holds.
  c10::SmallVector<int64_t, 5> counts;
  // int64, of the shape of `indices`, contiguous: where each index stands in
  // `wanted`, so that wanted[place] == indices.
  at::Tensor place;
};

// Owner c holds the rows [bounds[c], bounds[c + 1]) of a table of bounds.back()
// rows. Requires: bounds ascend (an owner may hold nothing), bounds[0] == 0.
// `indices` is int32 or int64 (c10::TypeError otherwise), of any shape. Throws
// c10::IndexError, which names the first bad index, if one is outside the
// table. Takes memory of the order of `indices`. Does not communicate.
Route route_rows(const at::Tensor& indices, c10::IntArrayRef bounds);

}  // namespace tessera::detail
