// A Group is the connection of this process to the other ranks of one group.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/process/wait_board.h"
#include "comm/transport/host.h"
#include "comm/transport/transport.h"
#include "tessera/mesh.h"

namespace tessera::detail {

// Which collective is running.
struct Call {
  CollectiveKind collective;
  // Null for a collective of the whole world.
  const DeviceMesh* mesh;
  // -1 for one of the whole mesh.
  int64_t dim;
  std::chrono::milliseconds timeout;
  uint8_t reduction = MessageTag::kNoReduction;
  // As in a FlightRecord.
  int64_t bytes = 0;
};

// Who makes a group.
struct GroupRequest {
  // "cpu [0, 1]": what errors and records call the group.
  std::string name;
  // Keys of this store are those of the group.
  c10::intrusive_ptr<c10d::Store> store;
  // Ranks of the world, in the order of the group.
  std::vector<int64_t> ranks;
  // This process's place among them.
  int64_t coordinate;
  // Where this process is, and the host through which it may be reached.
  Host host;
  std::string towards;
  std::chrono::milliseconds timeout;
  // A hash of what this rank has drawn for the group; outlives it.
  const std::atomic<uint32_t>* drawn = nullptr;
  // Where long waits are told; outlives it.
  WaitBoard* board = nullptr;
};

class Group {
 public:
  // Connects to the other ranks, each of which must make this group too.
  // Throws c10::Error that names `call` and the ranks that did not come; all
  // may then try again.
  Group(const GroupRequest& request, const Call& call);
  ~Group();

  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  // This process's place in the group.
  int64_t coordinate() const { return coordinate_; }
  const std::vector<int64_t>& ranks() const { return ranks_; }
  // Those at these coordinates.
  std::vector<int64_t> ranks_of(const std::vector<int64_t>& peers) const;
  // By which the flight recorder knows it.
  uint32_t flight_group() const { return flight_group_; }

  // Collectives of one group follow each other.
  std::mutex& mutex() { return mutex_; }

  // All that follows needs the mutex.

  // One or two: those in use.
  const std::vector<std::unique_ptr<Transport>>& transports() const {
    return transports_;
  }
  // The one that reaches a peer.
  Transport& transport(int64_t peer) const { return *route_[peer]; }
  uint32_t next_sequence() { return board_.begin_call(calls_); }
  // A wait in a call, for peers at these coordinates, that has become long.
  std::unique_ptr<WaitBoard::LongWait> long_wait(
      const Call& call,
      uint32_t sequence,
      const std::vector<int64_t>& peers) const;
  // A hash of the random numbers that the ranks of the group share.
  uint32_t drawn() const { return drawn_ == nullptr ? 0 : drawn_->load(); }
  // Why nothing more can be sent or received; empty: nothing is wrong.
  const std::string& error() const { return error_; }
  // After an error what is on its way can no longer be told from what follows:
  // the group is of no more use, and the peers learn of `root`, the error that
  // came first, of which `error` may tell.
  void break_off(const std::string& error, const std::string& root);

 private:
  std::vector<int64_t> ranks_;
  int64_t coordinate_;
  uint32_t flight_group_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<Transport*> route_;  // by coordinate
  WaitBoard& board_;
  BoardGroup& calls_;
  const std::atomic<uint32_t>* drawn_;
  std::string error_;
  std::mutex mutex_;
};

// "[all_reduce] rank 3": how errors of a call begin.
std::string tagged_rank(const Call& call, int64_t rank);
// "group [0, 1] (mesh dim 'tp' of DeviceMesh(...))"
std::string describe_group(const std::vector<int64_t>& ranks, const Call& call);

}  // namespace tessera::detail
