// What a message belongs to. Sender and receiver each work it out for
// themselves: if the two differ, the ranks are not in the same call.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/placement.h"

namespace tessera::detail {

enum class CollectiveKind : uint8_t {
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  AllToAllRows,
  Broadcast,
  Scatter,
  Agree,
  Barrier,
};

// "all_reduce"
const char* name(CollectiveKind collective);

struct MessageTag {
  static constexpr uint8_t kNoReduction = 255;

  uint32_t sequence = 0;  // the number of the call in its group
  CollectiveKind collective = CollectiveKind::AllReduce;
  uint8_t reduction = kNoReduction;  // a ReduceOp
  c10::ScalarType dtype = c10::ScalarType::Byte;
  uint8_t unused = 0;
  uint32_t cause = 0;   // a hash of the op on whose behalf it is sent
  uint16_t drawn = 0;   // of the random numbers that the ranks share
  uint16_t shapes = 0;  // of the shapes that the sender has assumed
  int64_t bytes = 0;

  friend bool operator==(const MessageTag&, const MessageTag&) = default;
};
static_assert(sizeof(MessageTag) == 24);

// A hash that is the same in every process.
uint32_t hash_cause(std::string_view op);

// How the tag of a message that a peer, "it", has sent differs from the one
// that was expected, and what to do: "it sent all_gather (call 7, Float, 16
// bytes) instead of all_reduce (...). Check that ...".
std::string describe_mismatch(const MessageTag& sent, const MessageTag& due);

}  // namespace tessera::detail
