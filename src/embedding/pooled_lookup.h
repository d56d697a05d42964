// Bags of a row-wise sharded table that the owners of rows pool: each owner is
// asked for its entries of a bag and sends back what they are pooled to.
#pragma once

#include "embedding/bag_route.h"
#include "embedding/handshake.h"
#include "embedding/table_lookup.h"

namespace tessera::detail {

// `routes` are those of the request's inputs, told[i] what local position i was
// told. `argmax_dtype`, of which the argmax of maxima is sent: its largest
// number means none. Communicates: sends the requests.
c10::intrusive_ptr<TableLookup> make_pooled_lookup(
    LookupRequest request,
    const SettledLookup& settled,
    std::vector<BagRoute> routes,
    c10::ArrayRef<BagRequests> told,
    at::ScalarType argmax_dtype);

}  // namespace tessera::detail
