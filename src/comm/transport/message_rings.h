// What one rank of a group tells the others of its machine, in memory that they
// map: a ring of short messages to each of them, and whether it is still there.
// A reader that finds nothing sleeps until a writer wakes it; no thread stands
// between.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/message_tag.h"
#include "comm/transport/shared_range.h"

namespace tessera::detail {

struct RingEntry {
  static constexpr int64_t kInline = -1;  // the message is in `contents`

  MessageTag tag;
  int64_t place;  // of a piece in the sender's buffer, or kInline
  std::array<char, 32> contents;
};

class MessageRings {
 public:
  enum class State : uint32_t { Open, Left, Broken };
  // What a rank that sleeps waits for.
  enum class Sleep : uint32_t { Awake, ForMessages, ForRoomToo };

  // Those of this rank. Null where the system gives no memory to share.
  static std::unique_ptr<MessageRings> create(int64_t ranks);
  // Another's, by their name. Null where they cannot be reached.
  static std::unique_ptr<MessageRings> open(
      const std::string& name, int64_t ranks);

  const std::string& name() const { return range_->name(); }
  // After all have opened them.
  void close_file() { range_->close_file(); }

  // --- the owner writes ---
  bool has_room(int64_t reader) const;
  // Requires: has_room(reader). The reader still has to be woken.
  void push(int64_t reader, const RingEntry& entry);
  // No piece that the reader has not taken yet will be read: their places, for
  // the owner to release. Entries that hold their message stay.
  std::vector<int64_t> revoke(int64_t reader);
  void set_state(State state, const std::string& error);
  // The owner has sent or taken a piece of a message.
  void note_piece();

  // --- the reader reads ---
  bool has_entry(int64_t reader) const;
  // The oldest. False if its piece was revoked. Requires: has_entry(reader).
  bool pop(int64_t reader, RingEntry& entry);
  State state() const;
  // How many pieces the owner has noted; wraps around.
  uint32_t pieces() const;
  // Why it is Broken.
  std::string error() const;

  // --- the owner sleeps; others wake it ---
  // The owner tells what it waits for, looks once more whether it has come, and
  // then sleeps: wake() after the first step ends the sleep.
  uint32_t prepare_sleep(Sleep what);
  void sleep(uint32_t prepared, std::chrono::nanoseconds at_most);
  void end_sleep();
  void wake(Sleep least);
  // The owner should look at its peers' states.
  void alert();
  bool alerted() const;

 private:
  struct Head;
  struct Ring;
  explicit MessageRings(std::unique_ptr<SharedRange> range);
  Head& head() const;
  Ring& ring(int64_t reader) const;

  const std::unique_ptr<SharedRange> range_;
};

}  // namespace tessera::detail
