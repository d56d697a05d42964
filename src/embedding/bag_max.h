// Bags of maxima over a table that is row-wise sharded: each rank finds the
// maxima of its rows, and they are merged. No row of a rule can say that: who
// won is decided by the values and, among equals, by the order of the bag.
#pragma once

#include <string_view>

#include "embedding/bag_ops.h"

namespace tessera::detail {

// What caused the communication of bags, as counted.
inline constexpr std::string_view kBagCause = "aten::_embedding_bag";

// Whether a mesh dimension of several ranks cuts the rows of the distributed
// `weight`, and the mode is max.
bool cuts_rows_of_max(const at::Tensor& weight, const BagArgs& args);

// The maxima and their argmax, on all ranks that share the rows. Communicates:
// two all_reduces a mesh dimension that cuts the rows. Below autograd.
Bags max_over_rows(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const BagArgs& args);

}  // namespace tessera::detail
