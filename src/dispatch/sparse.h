// Distributed tensors whose shards are sparse (COO): the gradients of lookups
// with sparse=True.
//
// They have the dispatch key of sparse tensors, so that is_sparse() is true.
// Shards of rows store as many entries as their rows were touched, so the
// indices and values of the whole are no distributed tensor over the same mesh.
// They lie on the ranks that share the rows: the mesh without the dimensions
// that shard rows, or this process alone where none is left. A process sees the
// entries that live in it; in a simulated world those are all, in the order of
// one device. Nothing here communicates.
#pragma once

#include <torch/library.h>

namespace tessera::detail {

// What is sparse about them: registered for the sparse key of `aten`.
void register_sparse(torch::Library& sparse_aten);

// Any other op: what it is for dense distributed tensors.
void run_as_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace tessera::detail
