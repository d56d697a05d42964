// Lookups in a row-wise sharded table: the handshake, after which every rank
// knows whether rows move or owners pool.
#pragma once

#include "embedding/table_lookup.h"

namespace tessera::detail {

// Requires: request.mesh_dim is the one dimension that shards the table's rows.
c10::intrusive_ptr<TableLookup> make_row_wise_lookup(
    LookupRequest request,
    const WantedGradients& wanted,
    const LocalError& error);

}  // namespace tessera::detail
