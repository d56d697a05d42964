// The collectives of a world of processes, made of messages over c10d.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/collectives.h"
#include "comm/environment.h"
#include "comm/group.h"

namespace tessera::detail {

class ProcessCollectives final : public Collectives {
 public:
  // `store` belongs to this world; the launch says who we are in it. `timeout`
  // is read at each collective and must outlive this.
  ProcessCollectives(
      Launch launch,
      c10::intrusive_ptr<c10d::Store> store,
      const std::atomic<std::chrono::milliseconds>& timeout);
  // Where rank 0 serves the store, it waits a while until no rank needs it any
  // more; not if an exception is on its way.
  ~ProcessCollectives() override;

  Shards all_reduce(MeshDim at, ShardsRef in, ReduceOp op) override;
  Shards all_gather(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) override;
  Shards reduce_scatter(
      MeshDim at,
      ShardsRef in,
      int64_t dim,
      PartsRef parts,
      ReduceOp op) override;
  Shards all_to_all(
      MeshDim at,
      ShardsRef in,
      int64_t split_dim,
      PartsRef split_parts,
      int64_t concat_dim,
      PartsRef concat_parts) override;
  Shards broadcast(MeshDim at, ShardsRef in) override;
  Shards scatter(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) override;
  Shards all_to_all_rows(
      MeshDim at,
      ShardsRef in,
      PartsRef send_rows,
      PartsRef recv_rows) override;
  void agree(
      const DeviceMesh& mesh,
      const std::string& local_error,
      ErrorKind kind) override;

  // Waits until every rank of the world has come here.
  void barrier();

  // The connection of this rank's group. Requires: this rank is in the mesh.
  c10::intrusive_ptr<c10d::Backend> backend(MeshDim at);

 private:
  // The group of these ranks, connected at its first use by its members alone.
  Group& group(const std::vector<int64_t>& ranks, const Call& call);
  Group& group(MeshDim at, const Call& call);
  Call call(const char* collective, MeshDim at) const;

  const Launch launch_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::atomic<std::chrono::milliseconds>& timeout_;
  // Exceptions on their way when this was made.
  const int exceptions_;
  std::mutex mutex_;
  // Each entry has a lock of its own: while one thread waits for the members of
  // a group, another may make or use a different one.
  struct Entry {
    std::mutex mutex;
    std::unique_ptr<Group> group;
  };
  std::map<std::vector<int64_t>, Entry> groups_;
};

}  // namespace tessera::detail
