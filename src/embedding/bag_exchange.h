// Bags of a table that is row-wise sharded. Entries go to the ranks that own
// their rows; what comes back are pooled rows, or the distinct rows themselves,
// whichever is less. Entries whose rows lie on the rank that asks stay there.
#pragma once

#include "embedding/bag_lookup.h"

namespace tessera::detail {

// A lookup that has sent nothing yet. Requires: `mesh_dim` is the one dimension
// that cuts the rows of `table`; one element of `bags` for each local position.
c10::intrusive_ptr<BagVisit> make_bag_exchange(
    SpecPtr table,
    int64_t mesh_dim,
    std::vector<RankBags> bags,
    const BagQuery& query);

}  // namespace tessera::detail
