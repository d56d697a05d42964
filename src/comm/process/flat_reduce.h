// Reductions over a group, on flat contiguous tensors in host memory. Each
// element is reduced on one rank, in the order of the group, so that all ranks
// see the same bits.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "comm/process/group.h"
#include "tessera/placement.h"

namespace tessera::detail {

// How reductions are split into blocks.
struct ReduceSizes {
  // An all_reduce of at most this many bytes sends everything to everyone: one
  // trip instead of two.
  int64_t small_bytes = int64_t{64} << 10;
  // Others stream through buffers of this size, two blocks at a time.
  int64_t block_bytes = int64_t{4} << 20;
};

// One reduction in a group.
struct FlatReduction {
  Group& group;
  const Call& call;
  const ReduceSizes& sizes;
  ReduceOp op;

  // Sends pieces[c] to rank c of the group, for each c but this one's, and
  // writes the reduction of what comes, and of this rank's own piece, to `out`.
  // All pieces are flat; this rank's own has the size of `out`.
  void reduce_scatter(
      c10::ArrayRef<at::Tensor> pieces, const at::Tensor& out) const;

  // Writes the reduction of `in` over the group to `out`, of the same size.
  void all_reduce(const at::Tensor& in, const at::Tensor& out) const;
};

}  // namespace tessera::detail
