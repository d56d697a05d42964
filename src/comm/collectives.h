// Collectives: the only place where shards of different ranks meet.
//
// Each function takes the shards that live in this process, one for each of
// mesh.local_positions(), and returns as many. Over processes that is one shard
// (none, where the rank is outside the mesh: nothing is sent), in a simulated
// world one a position. A collective runs in every group along one mesh
// dimension at once. A group of one rank sends nothing and returns its input.
//
// Shards need not be contiguous, even or non-empty. Sizes are never exchanged:
// callers derive them from the layout and pass them in, by group coordinate,
// one list for each local position (groups may be split differently).
//
// Results are contiguous and share memory neither with the inputs nor with each
// other (a group of one aside). Reductions take their terms in the order of the
// group, half and bfloat16 in float: both worlds give the same bits, and every
// rank of a group the same as the others. Nothing is recorded for autograd.
//
// Over processes every function throws c10::Error, naming rank, collective and
// group, when a peer does not come within the World's timeout or is lost.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/mesh.h"
#include "tessera/placement.h"
#include "tessera/spec.h"

namespace tessera::detail {

using Shards = c10::SmallVector<at::Tensor, 1>;
using ShardsRef = c10::ArrayRef<at::Tensor>;
// Sizes of the parts along one tensor dimension, by group coordinate.
using Parts = Sizes;
using PartsRef = c10::ArrayRef<Parts>;

// A dimension of shards and the parts that it is split into, a list for each
// local position.
struct SplitDim {
  int64_t dim;
  PartsRef parts;
};

// The group along one dimension of a mesh.
struct MeshDim {
  const DeviceMesh& mesh;
  int64_t dim;
};

// The type of the exception that agree() throws on every rank.
enum class ErrorKind : uint8_t { Error, Value, Index, Type, NotImplemented };

// What is the same in every world is done here, once: checks of the arguments,
// groups of one rank, counting, meta tensors. A world moves the bytes (do_...),
// and is asked to only where there are any.
class Collectives {
 public:
  virtual ~Collectives() = default;

  // Every rank gets the reduction of all shards. Shards of a group have one
  // shape. bool: Sum and Max are or, Product and Min are and. Avg of an integer
  // type and Min or Max of a complex one throw c10::ValueError.
  Shards all_reduce(MeshDim at, ShardsRef in, ReduceOp op);

  // Every rank gets the concatenation along `dim`. `parts[i]` are the sizes
  // along `dim` of the shards in local position i's group.
  Shards all_gather(MeshDim at, ShardsRef in, int64_t dim, PartsRef parts);

  // The reduction, split along `dim` into `parts`; rank c of the group gets
  // part c.
  Shards reduce_scatter(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts, ReduceOp op);

  // From split along `concat` to split along `split`: each rank splits its
  // shard into the parts of `split`, sends part c to rank c, and concatenates
  // what it receives, whose sizes are the parts of `concat`.
  Shards all_to_all(
      MeshDim at, ShardsRef in, const SplitDim& split, const SplitDim& concat);

  // Every rank gets the shard of the group's first rank. All have one shape.
  Shards broadcast(MeshDim at, ShardsRef in);

  // Rank c of the group gets part c along `dim` of the first rank's shard. The
  // other ranks' shards are read for shape and dtype only.
  Shards scatter(MeshDim at, ShardsRef in, int64_t dim, PartsRef parts);

  // The exchange: rows of dim 0 go where they are wanted. Position i sends
  // `send_rows[i][c]` rows (in order) to rank c of its group and receives
  // `recv_rows[i][c]` rows from it.
  Shards all_to_all_rows(
      MeshDim at, ShardsRef in, PartsRef send_rows, PartsRef recv_rows);

  // Every rank of the mesh (of its own sub-mesh, for a slice) passes its error
  // text, or "" if all is well. If any passed one, every rank throws the text
  // of the first such rank, as the type `kind` which that rank gave. Ranks
  // outside the mesh take no part.
  void agree(
      const DeviceMesh& mesh,
      const std::string& local_error,
      ErrorKind kind = ErrorKind::Error);

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
      const SplitDim& split,
      const SplitDim& concat) = 0;
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

// The collectives of the world in which `mesh` was made. Throws c10::Error if
// that world has gone.
Collectives& collectives(const DeviceMesh& mesh);

}  // namespace tessera::detail
