// The strategies of lookups, each a TableLookup in the file of its name.
#pragma once

#include "embedding/handshake.h"
#include "embedding/row_exchange.h"
#include "embedding/table_lookup.h"
#include "kernels/route/bag_route.h"

namespace tessera::detail {

using LookupPtr = c10::intrusive_ptr<TableLookup>;

// In a row-wise sharded table. The handshake, after which every rank knows
// whether rows move or owners pool.
// Requires: request.mesh_dim is the one dimension that shards the table's rows.
LookupPtr make_row_wise_lookup(LookupRequest request, const LocalError& error);

// In a column-wise sharded table, of whose rows every rank has a part: every
// rank gets the entries of all ranks, pools its own columns for all bags, and
// each bag's columns meet on the rank that asked for it.
// Requires: the table is Shard(1) on a 1-d mesh, or its mesh has one rank.
// Communicates: the handshake, and an all_gather of all entries.
LookupPtr make_column_lookup(LookupRequest request, const LocalError& error);

// By the row exchange: rows come to the rank that asks, which pools them where
// bags are asked for.
// Requires: the routes of `exchange` are those of the request's inputs.
LookupPtr make_row_lookup(
    LookupRequest request, const SettledLookup& settled, RowExchange exchange);

// Bags that the owners of rows pool: each owner is asked for its entries of a
// bag and sends back what they are pooled to. `routes` are those of the
// request's inputs. The argmax of maxima is sent as `argmax_dtype`, whose
// largest number means none. Communicates: sends the requests.
LookupPtr make_pooled_lookup(
    LookupRequest request,
    const Handshake& handshake,
    std::vector<BagRoute> routes,
    at::ScalarType argmax_dtype);

}  // namespace tessera::detail
