// Where the processes of a world meet: a key-value store on rank 0, or on the
// launcher's agent.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/environment.h"

namespace tessera::detail {

// Connects to the store at the launch's address, which rank 0 serves unless the
// launcher does, and waits until every rank has come. The keys of the result
// belong to this world alone, though several may follow each other at one
// address. Throws c10::Error, tagged with `caller`, that names this rank, the
// address and the ranks that did not come.
c10::intrusive_ptr<c10d::Store> meet_world(
    const Launch& launch,
    std::chrono::milliseconds timeout,
    const char* caller);

// Says that `rank` is here under `name` and waits for the others of `ranks`.
// Returns those that did not come within the timeout. Throws what the store
// throws if it is lost.
std::vector<int64_t> meet(
    c10d::Store& store,
    const std::string& name,
    int64_t rank,
    const std::vector<int64_t>& ranks,
    std::chrono::milliseconds timeout);

// Texts as values of a store. get_text waits until there is one.
void put_text(
    c10d::Store& store, const std::string& key, const std::string& text);
std::string get_text(c10d::Store& store, const std::string& key);

// "rank 3" or "ranks 1, 3".
std::string name_ranks(const std::vector<int64_t>& ranks);

}  // namespace tessera::detail
