// Embedding bags over ranks that share a table and have bags of their own: any
// number of bags, of any length, on each rank. What is common to tables cut by
// rows (bag_exchange.h) and by columns (bag_columns.h), and the gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "dispatch/agreement.h"
#include "dispatch/tensor.h"
#include "kernels/bag/bag.h"
#include "tessera/embedding.h"

namespace tessera::detail {

// What is asked of the table: alike on every rank.
struct BagQuery {
  BagMode mode = BagMode::kSum;
  // A row without a gradient, whose entries are left out of bags; -1: none.
  int64_t padding_idx = -1;
  // Entries of padding are looked up all the same, as aten::embedding does.
  bool reads_padding = false;
  std::optional<double> max_norm = std::nullopt;
  double norm_type = 2;
  BagStrategy strategy = BagStrategy::Cheapest;
  // The table's gradient holds the rows that are looked up alone. For tables
  // cut by rows.
  bool sparse = false;
  // The backward pass moves the rows against their gradient by this much, in
  // place, and leaves no gradient.
  std::optional<double> step = std::nullopt;
  // Of offsets that every rank was to be given alike; 0: there are none.
  uint64_t offsets = 0;
  // The public function, for messages, and its name for counted bytes.
  const char* caller = "embedding_bag";

  // The row whose entries are left out of bags.
  int64_t left_out() const { return reads_padding ? -1 : padding_idx; }
  // Equal for equal queries, in every process.
  int64_t fingerprint() const;
};

// What one rank looks up. Bag b holds the entries bounds[b] to bounds[b + 1].
struct RankBags {
  at::Tensor indices;  // [n], int32 or int64, within the table; its device
  at::Tensor bounds;   // [bags + 1], int64, from 0 to n; its device
  at::Tensor weights;  // [n], the table's dtype: a per-sample weight an entry;
                       // or undefined

  int64_t bags() const { return bounds.size(0) - 1; }
};

// Of a rank with a error, whose input is not looked at.
RankBags no_bags(at::Device device);

// What the backward pass will be for.
struct BagWants {
  bool gradients = false;                    // of anything: there will be one
  bool per_sample_weight_gradients = false;  // of the per_sample_weights
};

// The pooled rows of each local rank's bags, [bags, d], one for each of the
// mesh's local positions; differentiable by `weight` and by the
// per_sample_weights. Requires: `weight` is distributed, and the dimension
// `mesh_dim` of its mesh cuts its rows or, alone, its columns. On a mesh of
// several dimensions no other one cuts the rows (each group along `mesh_dim`
// pools the columns it has), and ranks that differ in other coordinates alone
// have the same bags. Writes the table if there is a max_norm, and in the
// backward pass if there is a step. Communicates, and so does the backward
// pass, which every rank must run. If a rank has a error, every rank throws it;
// if queries differ, or some ranks alone have something that requires grad,
// every rank throws c10::ValueError.
std::vector<at::Tensor> lookup_bags(
    const at::Tensor& weight,
    int64_t mesh_dim,
    std::vector<RankBags> bags,
    const BagQuery& query,
    const LocalError& error);

// One lookup: what its ranks have told each other is kept for the backward
// pass. Nothing here is recorded for autograd.
class BagVisit : public torch::CustomClassHolder {
 public:
  struct Gradients {
    Shards table;                     // empty where not wanted
    std::vector<at::Tensor> weights;  // undefined where not wanted
  };

  // `bags`, one for each local position of `table`'s mesh.
  BagVisit(
      SpecPtr table,
      int64_t mesh_dim,
      std::vector<RankBags> bags,
      const BagQuery& query);

  // Swaps what the ranks must know of each other, and throws what is wrong.
  virtual void meet(const LocalError& error, const BagWants& wants) = 0;
  // The pooled rows. `shards` may be renormalised. Requires: meet() was called.
  virtual std::vector<at::Tensor> pool(const at::Tensor& weight) = 0;
  // `weight` is the same table, undefined unless per_sample_weights need it,
  // which then is unchanged, or the query has a step, which then is made: if
  // the table needs a gradient, its rows move and the result has none.
  virtual Gradients differentiate(
      ShardsRef grads, const at::Tensor& weight, bool table_needs_grad) = 0;

  const SpecPtr& table() const { return table_; }
  c10::ArrayRef<RankBags> bags() const { return bags_; }
  const BagQuery& query() const { return query_; }
  // Whether some rank's per_sample_weights need a gradient; known after meet().
  bool weights_need_grad() const { return weights_need_grad_; }

 protected:
  int64_t rows() const { return table_->sizes[0]; }
  // Rows are numbered from 0, so that few tables need 8 bytes.
  at::ScalarType index_dtype() const;
  // In which sums are kept until they are complete.
  at::ScalarType sum_dtype() const;
  MeshDim along() const { return {table_->mesh, mesh_dim_}; }
  int64_t ranks() const { return table_->mesh.size(mesh_dim_); }

  SpecPtr table_;
  int64_t mesh_dim_;
  std::vector<RankBags> bags_;
  BagQuery query_;
  bool weights_need_grad_ = false;
};

}  // namespace tessera::detail
