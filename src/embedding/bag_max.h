// Bags of maxima over a row-wise sharded table: each rank finds the maxima of
// its rows, and they are merged. No rule can say that: the argmax depends on
// the values and, among equals, on the order of the bag.
#pragma once

#include "embedding/bag_op.h"

namespace tessera::detail {

// Whether a mesh dimension of several ranks shards the rows of a distributed
// table, and the mode is max.
bool shards_rows_of_max(const Bag::Args& args);

// The maxima and their argmax, on all ranks that share the rows. Communicates:
// two all_reduces for each mesh dimension that shards the rows. Below autograd.
Bag::Result max_over_rows(const Bag::Args& args);

}  // namespace tessera::detail
