#include "comm/transport/message_tag.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/hash.h"

namespace tessera::detail {

namespace {

// A tag that comes from another rank may hold any bytes.
std::string describe(const MessageTag& tag) {
  std::string text = c10::str(name(tag.collective), " (call ", tag.sequence);
  if (tag.reduction != MessageTag::kNoReduction) {
    const auto most = static_cast<uint8_t>(ReduceOp::Max);
    text += ", ";
    text += tag.reduction <= most
                ? std::string(to_string(static_cast<ReduceOp>(tag.reduction)))
                : "unknown reduction";
  }
  return c10::str(
      text, ", ", c10::toString(tag.dtype), ", ", tag.bytes, " bytes)");
}

}  // namespace

const char* name(CollectiveKind collective) {
  static constexpr std::array kNames{
      "all_reduce",
      "all_gather",
      "reduce_scatter",
      "all_to_all",
      "all_to_all_rows",
      "broadcast",
      "scatter",
      "agree",
      "World::barrier"};
  // A message of another process may hold any number.
  const auto index = static_cast<size_t>(collective);
  return index < kNames.size() ? kNames[index] : "an unknown collective";
}

uint32_t hash_cause(std::string_view op) {
  uint64_t hash = op.size();
  for (size_t at = 0; at < op.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, op.data() + at, std::min(sizeof(word), op.size() - at));
    hash = hash_combine(hash, word);
  }
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

std::string describe_mismatch(const MessageTag& sent, const MessageTag& due) {
  const auto text = describe(due);
  MessageTag alike = sent;
  alike.drawn = due.drawn;
  if (alike == due) {
    return "in " + text +
           " it had drawn other random numbers for a tensor of which both "
           "ranks hold the same part. Seed every rank alike where such tensors "
           "are filled, and give what differs from rank to rank a generator of "
           "its own";
  }
  alike.shapes = due.shapes;
  if (alike == due) {
    return "in " + text +
           " from_local had made tensors of different shapes on the two "
           "ranks. Shards that differ in size need its option uneven, or "
           "shape; "
           "terms of a Partial have one shape";
  }
  alike.cause = due.cause;
  return (alike == due ? "it called " + text + " for another operation"
                       : "it sent " + describe(sent) + " instead of " + text) +
         ". Check that every rank of the group calls the same collectives in "
         "the same order with the same sizes";
}

}  // namespace tessera::detail
