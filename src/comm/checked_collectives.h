// What is the same in every world, done once: checks of the arguments, groups
// of one rank, counting, meta tensors. The worlds move the bytes (do_...), and
// are asked to only where there are any.
#pragma once

#include <string>

#include "comm/collectives.h"

namespace tessera::detail {

class CheckedCollectives : public Collectives {
 public:
  Shards all_reduce(MeshDim at, ShardsRef in, ReduceOp op) final;
  Shards all_gather(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) final;
  Shards reduce_scatter(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts, ReduceOp op) final;
  Shards all_to_all(
      MeshDim at,
      ShardsRef in,
      int64_t split_dim,
      PartsRef split_parts,
      int64_t concat_dim,
      PartsRef concat_parts) final;
  Shards broadcast(MeshDim at, ShardsRef in) final;
  Shards scatter(MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) final;
  Shards all_to_all_rows(
      MeshDim at, ShardsRef in, PartsRef send_rows, PartsRef recv_rows) final;
  void agree(
      const DeviceMesh& mesh,
      const std::string& local_error,
      ErrorKind kind) final;

 protected:
  // As their namesakes, in a group of several ranks of which some live here, on
  // shards that hold data, below autograd.
  virtual Shards do_all_reduce(MeshDim at, ShardsRef in, ReduceOp op) = 0;
  virtual Shards do_all_gather(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) = 0;
  virtual Shards do_reduce_scatter(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts, ReduceOp op) = 0;
  virtual Shards do_all_to_all(
      MeshDim at,
      ShardsRef in,
      int64_t split_dim,
      PartsRef split_parts,
      int64_t concat_dim,
      PartsRef concat_parts) = 0;
  virtual Shards do_broadcast(MeshDim at, ShardsRef in) = 0;
  virtual Shards do_scatter(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) = 0;
  virtual Shards do_all_to_all_rows(
      MeshDim at, ShardsRef in, PartsRef send_rows, PartsRef recv_rows) = 0;
  virtual void do_agree(
      const DeviceMesh& mesh,
      const std::string& local_error,
      ErrorKind kind) = 0;
};

}  // namespace tessera::detail
