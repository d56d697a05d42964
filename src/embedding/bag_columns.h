// Bags of a table of whose rows every rank has a part: it is column-wise
// sharded. Every rank gets the entries of all ranks, pools its own columns for
// all bags, and each bag's columns meet on the rank that asked for it. A table
// on one rank alone is such a table too, however it is sharded.
#pragma once

#include "embedding/bag_lookup.h"

namespace tessera::detail {

// A lookup that has sent nothing yet. Requires: `table` is Shard(1) on a 1-d
// mesh, or its mesh has one rank; one element of `bags` for each local
// position.
c10::intrusive_ptr<BagVisit> make_bag_columns(
    SpecPtr table, std::vector<RankBags> bags, const BagQuery& query);

}  // namespace tessera::detail
