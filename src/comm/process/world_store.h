// The store of a world of processes: at an address, or one that the program has
// connected its processes to already.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "comm/process/environment.h"

namespace tessera::detail {

// Connects to the store at the launch's address, which rank 0 serves unless the
// launcher does, and waits until every rank has come. The keys of the result
// belong to this world, though several may follow each other at one address.
// Throws c10::Error, tagged with `caller`, that names this rank, the address
// and the ranks that did not come.
c10::intrusive_ptr<c10d::Store> meet_at_address(
    const Launch& launch,
    std::chrono::milliseconds timeout,
    const char* caller);

// Likewise in a store that others serve, through another connection to it.
// `launch` gets to know that, and the store's host where it has one.
c10::intrusive_ptr<c10d::Store> meet_in_store(
    Launch& launch,
    const c10::intrusive_ptr<c10d::Store>& given,
    std::chrono::milliseconds timeout);

}  // namespace tessera::detail
