// Lookups by ranks that share a table and have inputs of their own: any number
// of rows or bags, of any length, on each rank. What at::embedding,
// at::embedding_bag and the functions on ShardedTensors share: what is asked,
// and the autograd node. The strategies are classes of their own: rows that
// move (row_lookup.cpp), bags that owners pool (pooled_lookup.h); see
// make_lookup.h.
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
  // The ranks are known to ask alike, but for which rows: in their handshake
  // they tell each other only how many.
  bool asks_alike = false;
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

// What one rank looks up: bags with their last offset, or indices of any shape
// without offsets. All within the table; look_up() sets padding_idx.
using LookupInput = BagIndices;

// Of a rank with a local error, whose input is not looked at.
LookupInput no_input(at::Device device);

// What `make` returns; no input if there is an error, or if it throws, which is
// then the error.
LookupInput input_unless(
    LocalError& error,
    at::Device device,
    c10::function_ref<LookupInput()> make);

// How many results a rank gets.
inline int64_t result_count(const LookupInput& input) {
  return input.offsets.defined() ? input.offsets.size(0) - 1
                                 : input.indices.numel();
}

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
  // What the inputs are parts of, where they are not the caller's own: a write
  // to them before the backward pass is an error, as on one device.
  std::vector<at::Tensor> parts_of = {};
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
    Shards table;               // empty where not wanted
    Shards per_sample_weights;  // likewise
  };

  // The result of each local rank. May renormalise the table. Called once.
  std::vector<at::Tensor> forward(const at::Tensor& weight);
  // If the query has a step and the table needs a gradient, the rows move and
  // the result has none.
  Gradients backward(const BackwardPass& pass) const;

  const LookupQuery& query() const { return request_.query; }
  // Of all that the caller gave, what must not have changed when the backward
  // pass comes.
  std::vector<at::Tensor> given() const;
  const SpecPtr& gradient() const { return request_.gradient; }
  bool weights_need_grad() const { return settled_.weights_need_grad; }
  // Whether a local rank has weights of its own.
  bool has_weights(size_t local) const {
    return input(local).per_sample_weights.has_value();
  }

 protected:
  TableLookup(LookupRequest request, const SettledLookup& settled)
      : request_(std::move(request)), settled_(settled) {}

  // The rows of the table that a local position may have to scale: those that
  // it holds and any rank looks up, and any others.
  virtual at::Tensor looked_up(size_t local) const = 0;
  virtual std::vector<at::Tensor> look_up(ShardsRef shards) = 0;
  // The gradients of what owners sent, on the owners.
  virtual Shards to_owners(ShardsRef grads) const = 0;
  // The bags that reach a local position's rows, whose results have the
  // gradient `given`.
  virtual BagGradient reaching(size_t local, const at::Tensor& given) const = 0;
  // The gradient that a local position's part has from them.
  virtual at::Tensor part_gradient(size_t local, const at::Tensor& given) const;
  // Of each local position's per_sample_weights. `given` are to_owners(grads).
  virtual Shards weight_gradients(
      ShardsRef grads, ShardsRef given, ShardsRef tables) const = 0;

  const Spec& table() const { return *request_.table; }
  const LookupInput& input(size_t local) const {
    return request_.inputs[local];
  }
  int64_t rows() const { return table().sizes[0]; }
  // In which sums are kept until they are complete.
  at::ScalarType sum_dtype() const;
  // The rows that a local position holds.
  Range held_rows(size_t local) const;
  BagPart part(size_t local) const { return {held_rows(local).begin, rows()}; }
  // The per_sample_weights of a rank: ones if only others have some.
  std::optional<at::Tensor> weights_of(size_t local) const;

  const LookupRequest request_;
  const SettledLookup settled_;
};

// The result of each local rank's input, one for each of the mesh's local
// positions: [bags, d], or the input's shape and d. `request` needs no
// `wanted`, nor `gradient` where that has the table's layout. Requires:
// `weight` is distributed, and the dimension `mesh_dim` of its mesh shards its
// rows or, on a 1-d mesh, its columns. On a mesh of several dimensions no other
// one shards the rows (each group along `mesh_dim` looks up the columns it
// has), and ranks that differ only in other coordinates have the same input.
// Writes the table if there is a max_norm, and in the backward pass if there is
// a step. Communicates, and so does the backward pass, which every rank must
// run. If a rank has a local error, every rank throws it; if queries differ, or
// only some ranks have something that requires grad, every rank throws
// c10::ValueError.
std::vector<at::Tensor> look_up(
    const at::Tensor& weight, LookupRequest request, const LocalError& error);

}  // namespace tessera::detail
