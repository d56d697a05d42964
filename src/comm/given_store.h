// Meeting in a store that the program has connected its processes to already.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "comm/environment.h"

namespace tessera::detail {

// Waits in `given` until every rank has come. `launch` gets to know whether all
// are on one machine, and that others serve the store. The result is another
// connection to it, whose keys belong to this world alone, though several may
// follow each other. Throws c10::Error that names this rank and those that did
// not come.
c10::intrusive_ptr<c10d::Store> meet_in_store(
    Launch& launch,
    const c10::intrusive_ptr<c10d::Store>& given,
    std::chrono::milliseconds timeout);

}  // namespace tessera::detail
