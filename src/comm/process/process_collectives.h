// The collectives of a world of processes: made of messages between them, or,
// for shards on GPUs, over NCCL.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "comm/process/device_group.h"
#include "comm/process/environment.h"
#include "comm/process/flat_reduce.h"
#include "comm/process/group.h"

namespace tessera::detail {

class ProcessCollectives final : public Collectives {
 public:
  struct Options {
    ReduceSizes reduce_sizes;
    Host host = Host::of_this_process();
  };

  // `store` belongs to this world; the launch says who we are in it. `timeout`
  // is read at each collective and must outlive this.
  ProcessCollectives(
      Launch launch,
      c10::intrusive_ptr<c10d::Store> store,
      const std::atomic<std::chrono::milliseconds>& timeout,
      Options options);
  // Where rank 0 serves the store, it waits a while until no rank needs it any
  // more; not if an exception is on its way.
  ~ProcessCollectives() override;

  // Waits until every rank of the world has come here.
  void barrier();

  // See comm/drawn.h.
  void note_drawn(MeshDim at, uint64_t bits);

  // A c10d backend for this rank's group, connected at its first use by the
  // ranks of the group. Requires: this rank is in the mesh.
  c10::intrusive_ptr<c10d::Backend> backend(MeshDim at);

 protected:
  Shards do_all_reduce(MeshDim at, ShardsRef in, ReduceOp op) override;
  Shards do_all_gather(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) override;
  Shards do_reduce_scatter(
      MeshDim at,
      ShardsRef in,
      int64_t dim,
      PartsRef parts,
      ReduceOp op) override;
  Shards do_all_to_all(
      MeshDim at,
      ShardsRef in,
      const SplitDim& split,
      const SplitDim& concat) override;
  Shards do_broadcast(MeshDim at, ShardsRef in) override;
  Shards do_scatter(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) override;
  Shards do_all_to_all_rows(
      MeshDim at,
      ShardsRef in,
      PartsRef send_rows,
      PartsRef recv_rows) override;
  void do_agree(
      const DeviceMesh& mesh,
      const std::string& local_error,
      ErrorKind kind) override;

 private:
  class Running;

  // Groups are told apart by the device type of the mesh as well: autograd runs
  // CPU and CUDA nodes in threads of their own, whose collectives have no
  // common order.
  struct Key {
    std::string device_type;
    std::vector<int64_t> ranks;
    auto operator<=>(const Key&) const = default;
  };
  // Each entry has a lock of its own: while one thread waits for the members of
  // a group, another may make or use a different one.
  struct Entry {
    std::mutex mutex;
    std::unique_ptr<Group> group;
    // For shards on a GPU: not decided yet, or null, or over NCCL.
    std::optional<std::unique_ptr<DeviceGroup>> device;
    c10::intrusive_ptr<c10d::Backend> backend;
    std::atomic<uint32_t> drawn = 0;
  };

  // This rank's group along a mesh dimension.
  static Key key_of(MeshDim at);
  // A call on `shard`, whose bytes it notes.
  Call call(
      CollectiveKind collective, MeshDim at, const at::Tensor& shard) const;
  Entry& entry(const Key& key);
  // The group, connected at its first use by its members only.
  Group& group(const Key& key, const Call& call);
  // Where a shard on a GPU goes without the host. Null: it is in host memory,
  // or must go through it. Decided at the first use by the members of the
  // group.
  DeviceGroup* device_group(
      MeshDim at, const Call& call, const at::Tensor& shard);
  // The store, ranks and so on of a group to be made.
  GroupRequest request(
      const char* what, const Key& key, std::chrono::milliseconds timeout);
  // Throws c10::Error in a process that was forked from the one whose this is.
  void check_process(const char* caller) const;

  const Launch launch_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::atomic<std::chrono::milliseconds>& timeout_;
  const Options options_;
  std::shared_ptr<WaitBoard> board_;
  const uint64_t forks_;
  // Exceptions on their way when this was made.
  const int exceptions_;
  std::mutex mutex_;
  std::map<Key, Entry> groups_;
};

}  // namespace tessera::detail
