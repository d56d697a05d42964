// Bags of a table that is cut by columns. Every rank gets the entries of all
// ranks, pools its own columns for all bags, and each bag's columns meet on the
// rank that asked for it.
#pragma once

#include "dispatch/bag_lookup.h"

namespace tessera::detail {

// A lookup that has sent nothing yet. Requires: `table` is Shard(1) on a 1-d
// mesh; one element of `bags` for each local position.
c10::intrusive_ptr<BagVisit> make_bag_columns(
    SpecPtr table, std::vector<RankBags> bags, const BagQuery& query);

}  // namespace tessera::detail
