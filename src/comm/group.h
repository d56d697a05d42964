// A Group is the connection of this process to the other ranks of one group,
// and an Exchange the messages of one collective in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/backend.h"
#include "comm/letters.h"
#include "comm/shared_memory.h"
#include "tessera/mesh.h"

namespace tessera::detail {

// Which collective is running, for the texts of errors.
struct Call {
  const char* collective;
  // Null for a collective of the whole world.
  const DeviceMesh* mesh;
  // -1 for one of the whole mesh.
  int64_t dim;
  std::chrono::milliseconds timeout;
};

class Group {
 public:
  // Connects to the other ranks, each of which must make this group too.
  // Throws c10::Error that names `call` and the ranks that did not come.
  Group(GroupRequest request, const Call& call);

  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  // This process's place in the group.
  int64_t coordinate() const { return coordinate_; }
  const std::vector<int64_t>& ranks() const { return ranks_; }
  const BackendTraits& traits() const { return backend_.traits; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const {
    return backend_.backend;
  }

  // Collectives of one group follow each other.
  std::mutex& mutex() { return mutex_; }

 private:
  friend class Exchange;

  // What this process shares with another rank of its machine.
  struct Neighbour {
    bool reads_ours = false;
    // Null where they cannot be reached.
    std::unique_ptr<ReceivedLetters> letters;
    std::unique_ptr<Inbox> outbox;
  };

  // Says where this process's shared memory is.
  void announce(c10d::Store& store);
  // Opens that of the ranks on this machine, and asks who opened ours. Returns
  // the ranks that did not answer in time.
  std::vector<int64_t> meet_neighbours(
      c10d::Store& store, std::chrono::milliseconds timeout);
  // After an error what is on its way can no longer be told from what follows:
  // nothing more is sent or received, and the neighbours learn of it.
  void break_off(const std::string& error);

  std::vector<int64_t> ranks_;
  int64_t coordinate_;
  GroupBackend backend_;
  // Null where nothing is shared.
  std::shared_ptr<Outbox> outbox_;
  std::unique_ptr<SentLetters> letters_;
  std::vector<Neighbour> neighbours_;
  std::string error_;  // that broke the group off, or empty
  std::mutex mutex_;
};

// Sends and receives of one collective. Both sides know every size: an empty
// message is not sent. Messages between two ranks on one lane arrive in order.
// Those between ranks of one machine go through its shared memory, if there is
// room, others over the backend.
class Exchange {
 public:
  static constexpr int kLanes = 2;

  // Throws c10::Error if the group has failed before.
  Exchange(Group& group, const Call& call);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Starts to receive from, or send to, the rank at coordinate `peer`. The
  // tensor is contiguous, in memory that the backend reaches, and must not be
  // touched until the message is done. Returns the number of the message.
  size_t receive(int64_t peer, const at::Tensor& into, int lane = 0);
  size_t send(int64_t peer, const at::Tensor& from, int lane = 0);

  // Waits for one message that is received. Throws c10::Error that names rank,
  // collective, group and peer if it is not done in time or the peer is lost.
  void wait(size_t message);
  // Waits for all that are left.
  void finish();

 private:
  enum class Way : uint8_t { In, Out };

  // One that is on its way.
  struct Message {
    // Null: there is nothing to wait for, or it comes as a letter.
    c10::intrusive_ptr<c10d::Work> work = nullptr;
    int64_t peer;
    Way way;
    // Of one that comes as a letter: where it goes, until it has come.
    at::Tensor into = {};
    int lane = 0;
  };

  size_t add(Message message);
  // Over the backend.
  size_t start(Way way, int64_t peer, const at::Tensor& tensor, int tag);
  void wait_for_work(Message& message);
  // Takes the next letter of a lane, and what it speaks of.
  void take_letter(int64_t peer, int lane, const at::Tensor& into);
  // Where a message to others lies in the outbox; nothing: there is no room.
  std::optional<int64_t> lay(const at::Tensor& from);
  // What has gone by the backend though it was announced by letter.
  int& detours(Way way, int64_t peer, int lane);
  Deadline deadline() const { return begin_ + call_.timeout; }
  // Throws, and breaks the group off.
  [[noreturn]] void fail(int64_t peer, const std::string& cause) const;

  Group& group_;
  const Call call_;
  const int64_t subject_;  // of letters: which collective this is
  const Deadline begin_;
  std::vector<Message> messages_;
  std::vector<int> detours_;
  // What lies in the outbox. Held, so that no other message gets its memory.
  struct Laid {
    at::Tensor message;
    int64_t place;
  };
  std::vector<Laid> laid_;
};

}  // namespace tessera::detail
