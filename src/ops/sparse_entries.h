// Where the entries (indices and values) of sparse distributed tensors live.
//
// Shards of rows store as many entries as their rows were touched, so the
// indices and values of the whole are no distributed tensor over the same mesh.
// They live on the ranks that share the rows: the mesh without the dimensions
// that shard rows, or this process alone where none is left. A process sees the
// entries that live in it; in a simulated world those are all, in the order of
// one device. Nothing here communicates.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "tessera/shard_math.h"
#include "tessera/spec.h"

namespace tessera::detail {

// The layout of the entries of tensors of one layout.
struct EntryLayout {
  DeviceMesh mesh;
  Placements placements;
  // For each shard of the entries that lives here, the positions of the
  // tensor's mesh whose rows it holds, in the order of their rows.
  std::vector<c10::SmallVector<int64_t, 8>> sources;
};

// False for the slice of a mesh of which several copies live here, each with
// entries of its own, if it shards rows.
bool has_entry_layout(const Spec& spec);

// Throws c10::NotImplementedError unless there is one.
EntryLayout entry_layout(const Spec& spec);

// Whether a tensor is laid out as the entries of such tensors are.
bool is_layout_of(const EntryLayout& layout, const Spec& spec);

// The entries that live here, with the rows' numbers in the whole: a sparse
// tensor over the ranks that share them. `self` itself where rows are whole.
// Makes `self` current first. The result may be a copy, whose
// shards are read unchecked.
at::Tensor entries_of(const at::Tensor& self);

// Sparse entries as a sparse tensor laid out like `like`, to which they belong.
at::Tensor bring_home(
    const at::Tensor& entries, const Spec& like, const EntryLayout& layout);

// The rows that `position` holds.
Range rows_of(const Spec& spec, int64_t position);

// Which of the rows `rows` are in `range`.
at::Tensor entries_in(const at::Tensor& rows, const Range& range);

// The shard of a position that lives here. Throws as current_shards does.
const at::Tensor& shard_at(const at::Tensor& tensor, int64_t position);

// A shard of entries that are known to be right.
at::Tensor make_sparse(
    const at::Tensor& indices,
    const at::Tensor& values,
    SizesRef sizes,
    bool is_coalesced);

// Throws c10::NotImplementedError unless rows are the one sparse dimension.
void check_rows_alone(const at::Tensor& shard, const Spec& spec);

}  // namespace tessera::detail
