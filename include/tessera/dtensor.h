// DTensor: the handle by which a program asks a distributed tensor where it
// lies. The tensor itself is an at::Tensor like any other, and results of ATen
// calls are at::Tensors that are distributed; make a DTensor of one to ask.
#pragma once

#include <ATen/core/Tensor.h>

#include <iosfwd>
#include <optional>
#include <vector>

#include "tessera/export.h"
#include "tessera/mesh.h"
#include "tessera/placement.h"
#include "tessera/spec.h"

namespace tessera {

// Whether a tensor is distributed. False for an undefined one.
TESSERA_API bool is_dtensor(const at::Tensor& tensor);

struct FromLocalOptions {
  // Compare the shards' shapes over the ranks and broadcast replicas from the
  // first rank of each replicated mesh dimension. Communicates.
  bool run_check = false;
  // The global shape and strides. Needed where shards are uneven: without
  // them every rank is taken to hold a shard of the same shape.
  std::optional<Sizes> shape = std::nullopt;
  std::optional<Sizes> stride = std::nullopt;
};

class TESSERA_API DTensor : public at::Tensor {
 public:
  // Throws c10::TypeError unless `tensor` is distributed.
  explicit DTensor(at::Tensor tensor);

  // A distributed tensor of this rank's `local` shard; without placements a
  // replicated one. Differentiable. In a simulated world every rank holds
  // `local`, all but the first as a copy. Does not communicate unless
  // options.run_check. Throws c10::ValueError where shard, placements and shape
  // do not fit together.
  static DTensor from_local(
      const at::Tensor& local,
      const DeviceMesh& mesh,
      PlacementsRef placements = {},
      const FromLocalOptions& options = {});
  // As above, from one shard for each of mesh.local_positions(). A rank outside
  // the mesh passes one tensor that shows the shards' dtype and dimensions.
  static DTensor from_local(
      at::TensorList locals,
      const DeviceMesh& mesh,
      PlacementsRef placements = {},
      const FromLocalOptions& options = {});

  const DeviceMesh& mesh() const;
  PlacementsRef placements() const;
  const SpecPtr& spec() const;

  // This rank's shard. Differentiable: the gradient has `grad_placements`,
  // by default as the tensor, where a pending reduction's is replicated. Does
  // not communicate. A rank outside the mesh gets an empty tensor. Throws
  // c10::Error in a simulated world of several ranks: use shard or shards.
  at::Tensor to_local() const;
  at::Tensor to_local(std::optional<Placements> grad_placements) const;
  // The shards that live here, in the order of mesh().local_positions().
  // Differentiable, likewise.
  std::vector<at::Tensor> shards(
      std::optional<Placements> grad_placements = std::nullopt) const;
  // The shard of `rank`, detached. Throws c10::IndexError unless it lives here.
  at::Tensor shard(int64_t rank) const;

  // The whole value, as a plain tensor. Differentiable. Communicates unless
  // replicated. A rank outside the mesh gets an empty tensor.
  at::Tensor full_tensor(
      std::optional<Placements> grad_placements = std::nullopt) const;

  // The same value in another layout. Differentiable; communicates as needed.
  // Returns the tensor itself where nothing changes. Throws c10::ValueError for
  // a layout that does not fit, or for Partial where the tensor is not.
  DTensor redistribute(PlacementsRef placements) const;
  // As above; another mesh is refused with c10::NotImplementedError.
  DTensor redistribute(const DeviceMesh& mesh, PlacementsRef placements) const;
};

// Prints the layout and the shards that live here.
TESSERA_API std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

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
