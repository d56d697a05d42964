// Which entries of a rank's bags go to whom, where each rank owns a range of
// the table's rows. Plain functions of plain tensors; no communication.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "comm/collectives.h"
#include "embedding/table_lookup.h"
#include "kernels/lookup/route.h"

namespace tessera::detail {

// The entries of one rank's bags, owner after owner, itself included; for each
// owner the bags that have entries there, ascending, and their entries in the
// order of the bag. Padding goes nowhere. Tensors are on the indices' device.
struct BagRoute {
  Parts bag_counts;    // how many bags have entries at each owner
  Parts entry_counts;  // how many entries those are
  // How many distinct rows they name; 0s if not counted, and of the rank
  // itself.
  Parts row_counts;
  // For each owner the lengths of its bags, then the rows of their entries,
  // [bags + entries], of the index dtype. A length is negative where the bag's
  // first entry is not among them.
  at::Tensor request;
  at::Tensor bags;    // [bags], int64: which ones
  at::Tensor starts;  // [bags], int64: where each one's entries are in `places`
  at::Tensor places;  // [entries], int64: where they stand among the indices
  int64_t longest = 0;   // entries of the longest bag, padding included
  bool padding = false;  // whether some entries are padding
  // The route of the distinct rows, where it was made to count them.
  std::optional<Route> rows = std::nullopt;
};

// `bounds` are the owners' first rows, then the end of the table, chunked as
// torch.chunk does; `self` is the rank's own place among them. Rows are counted
// where the query's strategy depends on it. Requires: indices within the table.
// On a GPU, where that is not known yet, throws c10::IndexError for a bad one,
// and waits for the device once.
BagRoute route_bags(
    const LookupInput& input,
    const LookupQuery& query,
    c10::IntArrayRef bounds,
    int64_t self);
// The same for any device, as a composition of ATen's ops.
BagRoute route_bags_on_device(
    const LookupInput& input,
    const LookupQuery& query,
    c10::IntArrayRef bounds,
    int64_t self);

// What others ask of a rank.
struct AskedBags {
  // `request`s of all ranks, unpacked. With `leaders`, a bag whose first entry
  // is elsewhere begins with an entry that this part does not hold: the
  // kernels tell it from the others by that.
  BagIndices input;
  // [bags, 1], int32: where the asker's entries of each bag begin in `input`.
  at::Tensor firsts;
};

// `request` is what came, rank after rank; `absent` a row that is not held
// here, or -1 for no leaders. Does not wait for a device.
AskedBags unpack_requests(
    const at::Tensor& request,
    const Parts& bag_counts,
    const Parts& entry_counts,
    int64_t absent);
// The same for any device, as a composition of ATen's ops. With leaders, there
// may be entries of `absent` behind the last bag.
AskedBags unpack_requests_on_device(
    const at::Tensor& request,
    const Parts& bag_counts,
    const Parts& entry_counts,
    int64_t absent);

}  // namespace tessera::detail
