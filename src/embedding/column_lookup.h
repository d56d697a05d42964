// Lookups in a column-wise sharded table, of whose rows every rank has a part.
// Every rank gets the entries of all ranks, pools its own columns for all bags,
// and each bag's columns meet on the rank that asked for it.
#pragma once

#include "embedding/table_lookup.h"

namespace tessera::detail {

// Requires: the table is Shard(1) on a 1-d mesh, or its mesh has one rank.
// Communicates: the handshake, and an all_gather of all entries.
c10::intrusive_ptr<TableLookup> make_column_lookup(
    LookupRequest request,
    const WantedGradients& wanted,
    const LocalError& error);

}  // namespace tessera::detail
