// Where processes meet: in a key-value store, for a world and for each group.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::detail {

// A meeting of some ranks, each of which brought a text.
struct Meeting {
  // Its keys belong to this meeting. Null where it did not come about.
  c10::intrusive_ptr<c10d::Store> store;
  // Unlike that of any other meeting.
  std::string name;
  // What the ranks brought, in their order.
  std::vector<std::string> texts;
  // The ranks that did not come; empty unless it failed.
  std::vector<int64_t> missing;
};

// Waits until all of `ranks` have come, the process at index `me` of them with
// `text`. The first of them names the meeting and asks each of the others to
// confirm, so that what earlier meetings have left in the store (one that
// failed, one of an earlier program) is not taken for an answer: ranks that try
// again find each other. Throws what the store throws if it is lost, and
// c10::Error if another process has come in this one's place.
Meeting meet(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int64_t>& ranks,
    size_t me,
    const std::string& text,
    std::chrono::milliseconds timeout);

// In a meeting: each rank says another text and gets those of the others.
// Throws c10::Error if one does not come in time.
std::vector<std::string> tell_all(
    const Meeting& meeting,
    const std::string& name,
    size_t me,
    const std::string& text,
    std::chrono::milliseconds timeout);

// The text of one key, likewise.
std::string hear(
    c10d::Store& store,
    const std::string& key,
    std::chrono::milliseconds timeout);

// "rank 3" or "ranks 1, 3".
std::string name_ranks(const std::vector<int64_t>& ranks);

}  // namespace tessera::detail
