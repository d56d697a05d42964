// Short messages between processes of one machine, in memory that they share:
// small contents, or where in the sender's outbox large ones lie. A reader that
// finds nothing sleeps until the writer wakes it; no thread stands between.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/shared_memory.h"

namespace tessera::detail {

struct Letter {
  static constexpr int64_t kInside = -1;     // the message is in `text`
  static constexpr int64_t kElsewhere = -2;  // it comes by other means

  int64_t bytes;    // of the whole message
  int64_t place;    // in the sender's outbox, or one of the above
  int64_t subject;  // what it is about: the reader must expect the same
  std::array<char, 40> text;
};

using Deadline = std::chrono::steady_clock::time_point;

// Letters of this rank to the others of a group; those to one rank on one lane
// arrive in order. For one thread at a time.
class SentLetters {
 public:
  // Null where the system gives no memory to share.
  static std::unique_ptr<SentLetters> create(int64_t ranks, int lanes);
  // Readers that wait learn that nothing more will come.
  ~SentLetters();

  const std::string& name() const { return range_->name(); }

  // Waits where the reader has hundreds of letters to read yet. False: it did
  // not read until the deadline.
  bool post(int64_t to, int lane, const Letter& letter, Deadline deadline);

 private:
  SentLetters(std::unique_ptr<SharedRange> range, int64_t ranks, int lanes);

  const std::unique_ptr<SharedRange> range_;
  const int64_t ranks_;
  const int lanes_;
};

// Letters of another rank to this one. For one thread at a time.
class ReceivedLetters {
 public:
  // By the name of the other's SentLetters, in which this rank is `self`. Null
  // where they cannot be reached.
  static std::unique_ptr<ReceivedLetters> open(
      const std::string& name, int64_t self, int lanes);
  ~ReceivedLetters();

  enum class Arrival : uint8_t {
    Came,
    Late,  // nothing until the deadline
    Gone,  // nothing more will come: the other rank has left the group
  };

  // Waits until there is a letter to take.
  Arrival wait(int lane, Deadline deadline);
  // The oldest. Requires: wait() said that one came.
  Letter take(int lane);

 private:
  ReceivedLetters(
      std::unique_ptr<SharedRange> range, int64_t self, int lanes, int process);
  bool other_has_gone() const;

  const std::unique_ptr<SharedRange> range_;
  const int64_t self_;
  const int lanes_;
  const int process_;  // the other's, as a file; -1: unknown
};

}  // namespace tessera::detail
