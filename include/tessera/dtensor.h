// DTensor: a handle to a distributed tensor, with its mesh, placements and
// shards. A distributed tensor is an ordinary at::Tensor, and so are the
// results of ATen calls on it; wrap one in a DTensor to query its layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <iosfwd>
#include <optional>
#include <vector>

#include "tessera/export.h"
#include "tessera/mesh.h"
#include "tessera/placement.h"
#include "tessera/shard_math.h"
#include "tessera/spec.h"

namespace tessera {

// Whether a tensor is distributed. False for an undefined one.
TESSERA_API bool is_dtensor(const at::Tensor& tensor);

struct FromLocalOptions {
  // Compare the shapes of the shards across ranks, and whether they require
  // grad, and broadcast replicas from the first rank of each replicated mesh
  // dimension. Communicates.
  bool run_check = false;
  // The global shape and strides of a tensor whose shards are torch.chunk's.
  // Without them every rank is taken to hold a shard of the same shape.
  std::optional<Sizes> shape = std::nullopt;
  std::optional<Sizes> stride = std::nullopt;
  // Shards may have any size along the dimensions that are sharded, as in the
  // last batch of an epoch. The ranks share the sizes, and the few rows that
  // make the shards torch.chunk's move; the order of the rows stays. The result
  // is contiguous and shares memory with the shards only if nothing moved.
  // Communicates, and so does the backward pass if anything moved.
  bool uneven = false;
};

class TESSERA_API DTensor : public at::Tensor {
 public:
  // Throws c10::TypeError unless `tensor` is distributed.
  explicit DTensor(at::Tensor tensor);

  // Makes a distributed tensor from this rank's shard, `local`. Without
  // placements it is replicated. Differentiable: every rank's own tensor gets
  // its gradient, replicas too. In a simulated world every rank holds `local`,
  // all but the first as a copy. Does not communicate unless options.run_check
  // or options.uneven. Throws c10::ValueError where shard, placements and shape
  // do not fit together. Processes whose shards, or terms of a reduction,
  // differ in shape without options that say so learn of it with an error in
  // the next collective of this thread on the mesh.
  static DTensor from_local(
      const at::Tensor& local,
      const DeviceMesh& mesh,
      PlacementsRef placements = {},
      const FromLocalOptions& options = {});
  // As above, from one shard for each of mesh.local_positions(). A rank that is
  // not in the mesh passes one tensor with the dtype and shape of a shard.
  static DTensor from_local(
      at::TensorList locals,
      const DeviceMesh& mesh,
      PlacementsRef placements = {},
      const FromLocalOptions& options = {});

  const DeviceMesh& mesh() const;
  PlacementsRef placements() const;
  const SpecPtr& spec() const;

  // This rank's shard. Differentiable: the gradient has `grad_placements`; by
  // default those of the tensor, with Replicate instead of Partial. Does not
  // communicate unless reading_sends(). A rank that is not in the mesh gets an
  // empty tensor. The shard of a parameter is not a parameter: its gradient is
  // the tensor's. Throws c10::ValueError if `grad_placements` would give a
  // rank's gradient another shape than its shard has, and c10::Error in a
  // simulated world of several ranks: use shard or shards.
  at::Tensor to_local() const;
  at::Tensor to_local(std::optional<Placements> grad_placements) const;
  // The shards that live in this process, in the order of
  // mesh().local_positions(). Differentiable, like to_local.
  std::vector<at::Tensor> shards(
      std::optional<Placements> grad_placements = std::nullopt) const;
  // Whether the next read of this tensor, by an op or to_local(), sends: true
  // for a view of a sharded dimension that had to be copied, if it was not read
  // before or its base has been written since.
  bool reading_sends() const;
  // The shard of `rank`, detached. Throws c10::IndexError if the rank does not
  // live in this process.
  at::Tensor shard(int64_t rank) const;

  // The whole value, as a plain tensor. Differentiable: the gradient has
  // `grad_placements`, by default Replicate; each rank's is whole, so that
  // c10::ValueError is thrown for a Shard. Communicates unless the tensor is
  // replicated. A rank that is not in the mesh gets an empty tensor.
  at::Tensor full_tensor(
      std::optional<Placements> grad_placements = std::nullopt) const;

  // Which indices of dimension `dim` are in the shard of `rank`, or of this
  // process's rank. Does not communicate. Throws c10::IndexError if there is no
  // such dimension, c10::ValueError for a rank outside the mesh, and c10::Error
  // without a rank in a simulated world of several.
  Range local_range(int64_t dim) const;
  Range local_range(int64_t dim, int64_t rank) const;
  // The ranks whose shards hold index `index` of dimension `dim`, ascending:
  // several where the tensor is replicated or also sharded along another
  // dimension. Does not communicate. Throws c10::IndexError where the index is
  // out of range.
  std::vector<int64_t> owners(int64_t dim, int64_t index) const;

  // Returns the same value in another layout, or the tensor itself if the
  // layout is the same. Differentiable; communicates as needed. Throws
  // c10::ValueError if the placements do not fit the tensor or the mesh, or if
  // one is Partial and the tensor's own is not.
  DTensor redistribute(PlacementsRef placements) const;
  // As above; another mesh is refused with c10::NotImplementedError.
  DTensor redistribute(const DeviceMesh& mesh, PlacementsRef placements) const;
};

// Prints the layout and the shards that live in this process.
TESSERA_API std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

// Makes the gradient of a distributed leaf reach the leaf's hooks in the layout
// of the leaf. Ops do so where a leaf is first used; to be called by who clears
// the hooks of a leaf that is in use. Does nothing for other tensors.
TESSERA_API void keep_grad_layout(const at::Tensor& leaf);

// While one is alive, plain tensors among distributed arguments are taken as
// replicated in this thread.
class TESSERA_API ImplicitReplication {
 public:
  ImplicitReplication();
  ~ImplicitReplication();
  ImplicitReplication(const ImplicitReplication&) = delete;
  ImplicitReplication& operator=(const ImplicitReplication&) = delete;
};

}  // namespace tessera
