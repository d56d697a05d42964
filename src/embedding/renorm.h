// max_norm: rows that are looked up are scaled down in place, each once.
#pragma once

#include "comm/collectives.h"
#include "embedding/table_lookup.h"

namespace tessera::detail {

// Scales rows of the distributed table down to the query's max_norm. `rows`,
// for each local position, name rows of the whole table, any number of times;
// each rank scales those that it holds. Where columns are sharded, all ranks of
// a row must name it: its norm is reduced over them. Counts as a write.
void renorm_looked_up_(
    const at::Tensor& weight, ShardsRef rows, const LookupQuery& query);

}  // namespace tessera::detail
