// Lookups by ranks that share a table and have inputs of their own: any number
// of rows or bags, of any length, on each rank. What at::embedding,
// at::embedding_bag and the functions on ShardedTensors share: what is asked,
// and the autograd node. The strategies are classes of their own: rows that
// move (row_lookup.cpp), bags that owners pool (pooled_lookup.cpp), and
// column-wise sharded tables (column_lookup.cpp); see make_lookup.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "comm/collectives.h"
#include "dispatch/agreement.h"
#include "dispatch/tensor.h"
#include "kernels/bag/bag.h"
#include "tessera/embedding.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

// Whose lookup it is, for messages and for counted bytes.
struct LookupCaller {
  const char* name;
  const char* cause;
  const char* backward_cause;
  const char* instead;  // of a second derivative
};

extern const LookupCaller kEmbeddingCaller;         // at::embedding
extern const LookupCaller kShardedEmbeddingCaller;  // sharded::embedding
extern const LookupCaller kBagCaller;               // both embedding_bags

// What is asked of the table: the same on every rank.
struct LookupQuery {
  BagMode mode = BagMode::kSum;
  // A row without a gradient, whose entries are left out of bags; -1: none.
  int64_t padding_idx = -1;
  std::optional<double> max_norm = std::nullopt;
  double norm_type = 2;
  BagStrategy strategy = BagStrategy::Cheapest;
  // The table's gradient holds only the rows that are looked up.
  bool sparse = false;
  // The backward pass moves the rows against their gradient by this much, in
  // place, and leaves no gradient.
  std::optional<double> step = std::nullopt;
  // Of offsets that every rank was to be given alike; 0: there are none.
  uint64_t offsets = 0;
  bool pools = true;  // bags; otherwise each index has a row of the result
  const LookupCaller* caller = &kBagCaller;

  // The row whose entries are left out; rows that are not pooled include it.
  int64_t left_out() const { return pools ? padding_idx : -1; }
  // Equal for equal queries, in every process.
  int64_t fingerprint() const;
};

// What one rank looks up. Bag b holds the entries bounds[b] to bounds[b + 1].
struct LookupInput {
  at::Tensor indices;             // int32 or int64, within the table; bags: [n]
  at::Tensor bounds;              // bags: [bags + 1], int64, from 0 to n
  at::Tensor per_sample_weights;  // [n], of the table's dtype; or undefined

  int64_t bags() const {
    return bounds.defined() ? bounds.size(0) - 1 : indices.numel();
  }
};

// Of a rank with a local error, whose input is not looked at.
LookupInput no_input(at::Device device);

// What the backward pass will be for.
struct WantedGradients {
  bool any = false;                 // there will be a backward pass
  bool per_sample_weights = false;  // that gives their gradient
};

// A lookup by the local ranks.
struct LookupRequest {
  SpecPtr table;
  int64_t mesh_dim = 0;             // along which the ranks share the table
  std::vector<LookupInput> inputs;  // one for each local position
  LookupQuery query = {};
  SpecPtr gradient = {};  // the layout of the table's gradient
  WantedGradients wanted = {};

  MeshDim along() const { return {table->mesh, mesh_dim}; }
  // The coordinate of a local position among the ranks that share the table.
  int64_t coordinate(size_t local) const {
    return table->mesh.coordinate(
        table->mesh.local_positions()[local], mesh_dim);
  }
};

// What the handshake has settled for all ranks.
struct SettledLookup {
  bool silent = false;  // every row is where it is asked for: nothing is sent
  bool per_sample_weights = false;  // some rank has some
  bool weights_need_grad = false;   // of which some need a gradient
  bool padding = false;             // some rank has entries of padding
};

// A lookup after its handshake: all that is asked is settled, and its state is
// not changed any more, but for what the forward pass keeps for the backward
// pass. Nothing here is recorded for autograd.
class TableLookup : public torch::CustomClassHolder {
 public:
  struct BackwardPass {
    ShardsRef grads;
    // The same table; undefined unless per_sample_weights need it, which then
    // is unchanged, or the query has a step.
    const at::Tensor& weight;
    bool table_needs_grad;
  };
  struct Gradients {
    Shards table;                                // empty where not wanted
    std::vector<at::Tensor> per_sample_weights;  // undefined likewise
  };

  // The result of each local rank. May renormalise the table. Called once.
  std::vector<at::Tensor> forward(const at::Tensor& weight);
  // If the query has a step and the table needs a gradient, the rows move and
  // the result has none.
  virtual Gradients backward(const BackwardPass& pass) = 0;

  const LookupQuery& query() const { return request_.query; }
  const SpecPtr& gradient() const { return request_.gradient; }
  bool weights_need_grad() const { return settled_.weights_need_grad; }
  // Whether a local rank has weights of its own.
  bool has_weights(size_t local) const {
    return input(local).per_sample_weights.defined();
  }

 protected:
  TableLookup(LookupRequest request, const SettledLookup& settled)
      : request_(std::move(request)), settled_(settled) {}

  // The rows of the table that a local position may have to scale: those that
  // it holds and any rank looks up, and any others.
  virtual at::Tensor looked_up(size_t local) const = 0;
  virtual std::vector<at::Tensor> look_up(ShardsRef shards) = 0;

  const Spec& table() const { return *request_.table; }
  const LookupInput& input(size_t local) const {
    return request_.inputs[local];
  }
  int64_t rows() const { return table().sizes[0]; }
  // In which sums are kept until they are complete.
  at::ScalarType sum_dtype() const;
  // The rows that a local position holds.
  Range held_rows(size_t local) const;
  // The per_sample_weights of a rank: ones if only others have some.
  std::optional<at::Tensor> weights_of(size_t local) const;

  // Adds the gradient of a local position's part to `result`, which follows
  // from the bags that reach its rows; or makes the query's step.
  void take_gradient(
      size_t local,
      const BagGradient& bags,
      const at::Tensor& weight,
      Gradients& result) const;

  const LookupRequest request_;
  const SettledLookup settled_;
};

// Runs a lookup, recorded for autograd: differentiable by `weight` and by the
// `per_sample_weights` of the ranks that have some.
std::vector<at::Tensor> run_lookup(
    const at::Tensor& weight,
    at::TensorList per_sample_weights,
    c10::intrusive_ptr<TableLookup> lookup);

// The result of each local rank's input, one for each of the mesh's local
// positions: [bags, d], or the input's shape and d.
// Requires: `weight` is distributed, and the dimension `mesh_dim` of its mesh
// shards its rows or, on a 1-d mesh, its columns. On a mesh of several
// dimensions no other one shards the rows (each group along `mesh_dim` looks up
// the columns it has), and ranks that differ only in other coordinates have the
// same input.
// Writes the table if there is a max_norm, and in the backward pass if there is
// a step. Communicates, and so does the backward pass, which every rank must
// run. If a rank has a local error, every rank throws it; if queries differ, or
// only some ranks have something that requires grad, every rank throws
// c10::ValueError.
std::vector<at::Tensor> look_up(
    const at::Tensor& weight,
    int64_t mesh_dim,
    std::vector<LookupInput> inputs,
    const LookupQuery& query,
    const LocalError& error);

}  // namespace tessera::detail
