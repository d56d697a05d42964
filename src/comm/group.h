// A Group is the connection of this process to the other ranks of one group,
// and an Exchange the messages of one collective in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "comm/backend.h"
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

  std::vector<int64_t> ranks_;
  int64_t coordinate_;
  GroupBackend backend_;
  std::mutex mutex_;
};

// Sends and receives of one collective. Both sides know every size: an empty
// message is not sent. Messages between two ranks on one lane arrive in order.
class Exchange {
 public:
  Exchange(Group& group, const Call& call);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Starts to receive from, or send to, the rank at coordinate `peer`. The
  // tensor is contiguous, in memory that the backend reaches, and must not be
  // touched until the message is done. Returns the number of the message.
  size_t receive(int64_t peer, const at::Tensor& into, int lane = 0);
  size_t send(int64_t peer, const at::Tensor& from, int lane = 0);

  // Waits for one message. Throws c10::Error that names rank, collective, group
  // and peer if it is not done in time or the peer is lost.
  void wait(size_t message);
  // Waits for all that are left.
  void finish();

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    int64_t peer;
  };

  template <typename Start>
  size_t start(int64_t peer, const at::Tensor& tensor, Start start);
  [[noreturn]] void fail(int64_t peer, const std::exception& error) const;

  Group& group_;
  const Call call_;
  const std::chrono::steady_clock::time_point begin_;
  std::vector<Message> messages_;
};

}  // namespace tessera::detail
