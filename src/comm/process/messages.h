// The messages of one collective in a group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/process/group.h"

namespace tessera::detail {

// Both sides know every size: an empty message is not sent. Messages from one
// rank to another must be received in the order in which they are sent, and
// their tags must be equal.
class Messages {
 public:
  // A message that is received.
  struct Receipt {
    int64_t peer;
    uint64_t number;
  };

  // Throws c10::Error if the group, or a peer of it, has failed before.
  // Requires: the group's mutex is held.
  Messages(Group& group, const Call& call);
  // Breaks the group off if an exception ends the collective before its time.
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Starts to receive from, or send to, the rank at coordinate `peer`. The
  // tensor is contiguous, in host memory, and must not be touched until the
  // message is done. Waits for nothing.
  Receipt receive(int64_t peer, const at::Tensor& into);
  void send(int64_t peer, const at::Tensor& from);
  // The same to every other rank.
  void send_to_all(const at::Tensor& from);

  // Moves what can be moved, and waits for nothing. For collectives that work
  // for long before they wait: their peers must not take them for silent.
  void advance();
  // Waits until one message has been received. Throws c10::Error that names
  // rank, collective, group and peer if nothing has moved for the time of the
  // call's timeout, if the peer is lost, or if what it sends belongs to another
  // call.
  void wait(const Receipt& receipt);
  // Waits for all that are left, sends included.
  void finish();

 private:
  MessageTag tag(const at::Tensor& tensor) const;
  bool idle() const;
  void send(c10::ArrayRef<int64_t> peers, const at::Tensor& from);
  template <typename Done>
  void progress_until(Done done);
  // The peers on whom something waits.
  std::vector<int64_t> awaited() const;
  // Tells the other ranks of a long wait; throws if it cannot end.
  void look_at_wait(std::unique_ptr<WaitBoard::LongWait>& wait, Deadline begin);
  // All of these throw, and break the group off.
  [[noreturn]] void fail_late(Deadline begin);
  [[noreturn]] void fail_waiting(
      Deadline begin, const WaitBoard::Verdict& verdict);
  [[noreturn]] void fail(const PeerError& error);
  // `text` is this rank's error, `root` what the others are told of it.
  [[noreturn]] void fail(const std::string& text, const std::string& root);
  // "[all_reduce] rank 1"
  std::string begin_text() const;
  // " waited 12 ms in group [0, 1] (...)"
  std::string since_text(const char* what, Deadline begin) const;

  Group& group_;
  const Call call_;
  const MessageTag tag_;  // of all messages, but for dtype and size
  const Deadline begin_;
  const FlightScope flight_;
  // How many messages of each peer will have been received.
  c10::SmallVector<uint64_t, 8> due_;
  // Kept until they have been sent.
  c10::SmallVector<at::Tensor, 8> sent_;
};

}  // namespace tessera::detail
