// Lookups by the row exchange. Rows come to the rank that asks, which pools
// them where bags are asked for.
#pragma once

#include "embedding/row_exchange.h"
#include "embedding/table_lookup.h"

namespace tessera::detail {

// Requires: the routes of `exchange` are those of the request's inputs.
c10::intrusive_ptr<TableLookup> make_row_lookup(
    LookupRequest request, const SettledLookup& settled, RowExchange exchange);

}  // namespace tessera::detail
