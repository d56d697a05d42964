// Bags over ranks that own a range of a table's rows each: which entries go to
// whom, what others ask, and how their replies are put together. Plain
// functions of plain tensors: no communication.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

#include "kernels/bag/bag.h"
#include "kernels/lookup/route.h"
#include "tessera/spec.h"

namespace tessera::detail {

// The entries of one rank's bags, owner after owner, itself included; for each
// owner the bags that have entries there, ascending, and their entries in the
// order of the bag. Padding goes nowhere. Tensors are on the indices' device.
struct BagRoute {
  Sizes bag_counts;    // how many bags have entries at each owner
  Sizes entry_counts;  // how many entries those are
  // How many distinct rows they name; 0s if not counted, and of the rank
  // itself.
  Sizes row_counts;
  // For each owner the lengths of its bags, then the rows of their entries,
  // [bags + entries], of the index dtype. A length is negative where the bag's
  // first entry is not among them.
  at::Tensor request = {};
  // [bags], int64: which ones, and where each one's entries are in `places`.
  at::Tensor bags = {};
  at::Tensor starts = {};
  // [entries], int64: where they stand among the indices.
  at::Tensor places = {};
  int64_t longest = 0;   // entries of the longest bag, padding included
  bool padding = false;  // whether some entries are padding
  // The route of the distinct rows, where it was made to count them.
  std::optional<Route> rows = std::nullopt;
};

struct BagOwners {
  // Their first rows, then the end of the table, chunked as torch.chunk does.
  c10::IntArrayRef bounds;
  int64_t self;     // the rank's own place among them
  bool count_rows;  // whether the distinct rows shall be counted
};

// Requires: `bags` include the last offset, indices are within the table. On a
// GPU, where that is not known yet, throws c10::IndexError for a bad one, and
// waits for the device once.
BagRoute route_bags(const BagIndices& bags, const BagOwners& owners);

// What others ask of a rank.
struct AskedBags {
  // `request`s of all ranks, unpacked. With `leaders`, a bag whose first entry
  // is elsewhere begins with an entry that this part does not hold: the
  // kernels tell it from the others by that.
  BagIndices input;
  // [bags, 1], int32: where the asker's entries of each bag begin in `input`.
  at::Tensor firsts;
};

// What came, rank after rank.
struct BagRequestParts {
  const at::Tensor& requests;
  const Sizes& bag_counts;
  const Sizes& entry_counts;
};

// `absent` is a row that is not held here, or -1 for no leaders. Does not wait
// for a device, where there may be entries of `absent` behind the last bag.
AskedBags unpack_requests(const BagRequestParts& parts, int64_t absent);

// sums[route.bags[i]] += replies[i], in the order of i: each owner's bags
// differ.
void add_replies_(
    const at::Tensor& sums, const BagRoute& route, const at::Tensor& replies);

// No entry, in an argmax that is sent as `dtype`: byte or int32.
int64_t no_argmax(at::ScalarType dtype);

// The places among the rank's own indices, int32, of an argmax that owners
// counted from its first entry of the bag; -1 for none.
at::Tensor argmax_places(const BagRoute& route, const at::Tensor& argmax);

// Rows are numbered from 0, so that few tables need 8 bytes.
at::ScalarType index_dtype(int64_t rows);

// The kernels behind these functions, by device.
struct BagRouteKernels {
  decltype(route_bags)* route;
  decltype(unpack_requests)* unpack;
  decltype(add_replies_)* add;
  decltype(argmax_places)* places;

  // In one pass or two: composed of ATen's ops they would take longer than the
  // lookup's rest.
  static const BagRouteKernels& cpu();
  static const BagRouteKernels& cuda() { return composed(); }
  static const BagRouteKernels& composed();
};

}  // namespace tessera::detail
