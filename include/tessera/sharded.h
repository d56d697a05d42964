// ShardedTensor: a table of which each rank holds one local shard, and lookups
// of each rank's own input. A ShardedTensor is a view of a distributed tensor;
// both share their memory.
//
// Over processes one rank lives here, and each rank passes its own input. In a
// simulated world all ranks live here: lists hold an element for each rank that
// has a shard, in ascending order of rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/distribute.h"
#include "tessera/dtensor.h"
#include "tessera/embedding.h"
#include "tessera/export.h"

namespace tessera {

// The rank and the kind of device that a shard is on.
struct TESSERA_API ShardPlacement {
  // A rank: 2.
  template <std::integral Rank>
  ShardPlacement(Rank r) : rank(static_cast<int64_t>(r)) {}  // NOLINT
  // "rank:2/cpu" or "rank:2/cuda:0". Throws c10::ValueError for other texts.
  ShardPlacement(std::string_view text);  // NOLINT
  ShardPlacement(const char* text)        // NOLINT
      : ShardPlacement(std::string_view(text)) {}
  ShardPlacement(const std::string& text)  // NOLINT
      : ShardPlacement(std::string_view(text)) {}

  int64_t rank;
  std::string device_type = "cpu";

  // rank:2/cpu
  std::string str() const;
  friend bool operator==(const ShardPlacement&, const ShardPlacement&) =
      default;
};

// Shards dimension `dim` as torch.chunk does; chunk i goes to placements[i].
struct TESSERA_API ChunkShardingSpec {
  // Throws c10::ValueError without placements, or if they name several kinds of
  // devices.
  ChunkShardingSpec(int64_t dim, std::vector<ShardPlacement> placements);

  int64_t dim;
  std::vector<ShardPlacement> placements;

  // ChunkShardingSpec(dim=0, placements=[rank:0/cpu, rank:1/cpu])
  std::string str() const;
  friend bool operator==(const ChunkShardingSpec&, const ChunkShardingSpec&) =
      default;
};

// A shard that lives in this process.
struct LocalShard {
  at::Tensor tensor;  // shares the ShardedTensor's memory; detached
  Sizes offsets;      // where it begins in the whole
  int64_t rank;
};

class TESSERA_API ShardedTensor {
 public:
  // Nothing; !defined().
  ShardedTensor() = default;
  // A view of a distributed tensor: no copy. Throws c10::TypeError unless it is
  // distributed. Any layout will do; the ops below need chunks over a 1-d mesh.
  explicit ShardedTensor(const at::Tensor& distributed);

  // Shards a plain tensor. The value is that of the lowest rank, unless
  // options say that all ranks hold it. Keeps requires_grad; the result's
  // distributed tensor is a leaf. Communicates. Throws c10::ValueError for a
  // dim out of range or a rank outside the world.
  static ShardedTensor from_full(
      const at::Tensor& full,
      const ChunkShardingSpec& spec,
      const DistributeOptions& options = {});
  // Of shards that exist already, without a copy, one for each rank that lives
  // here (see above); `size` is that of the whole. Does not communicate. Throws
  // c10::ValueError where shards do not have the sizes of the chunks.
  static ShardedTensor from_local_shards(
      at::TensorList shards, SizesRef size, const ChunkShardingSpec& spec);

  bool defined() const;
  // Of the whole tensor. Requires, as all that follow: defined().
  SizesRef size() const;
  int64_t size(int64_t dim) const;
  // The spec, if it is one of chunks; nullptr for other layouts.
  const ChunkShardingSpec* sharding_spec() const;
  // The shards that live here, in ascending order of rank.
  std::vector<LocalShard> local_shards() const;
  // The tensor of the only one. Throws c10::ValueError if there is not just
  // one, as in a simulated world of several ranks.
  at::Tensor local_tensor() const;

  // The distributed tensor that this is a view of: over a mesh of the ranks in
  // the order of the placements, with Shard(dim). It is what optimizers take,
  // and its grad() is laid out likewise. Throws c10::ValueError if a rank holds
  // several chunks.
  DTensor dtensor() const;
  // The gradient of dtensor(); undefined if there is none.
  ShardedTensor grad() const;
  // Whether gradients are wanted; returns this.
  ShardedTensor& requires_grad_(bool requires_grad = true);

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// ShardedTensor(Float[10, 4], ChunkShardingSpec(dim=0, placements=[...]))
TESSERA_API std::ostream& operator<<(
    std::ostream& out, const ShardedTensor& tensor);

namespace sharded {

// Gradient descent on the rows that were looked up, in the backward pass:
// row -= lr * gradient, in place. Nothing else of the table is read or
// written, and no gradient is left: weight.grad() stays as it was. Two lookups
// of a table in one pass make two steps. Requires a weight that requires grad,
// and is a leaf; without gradients (c10::NoGradGuard) it does nothing.
struct RowSgd {
  double lr;
};

// As torch::nn::functional::EmbeddingFuncOptions. The same on every rank.
struct EmbeddingFuncOptions {
  std::optional<int64_t> padding_idx = std::nullopt;  // gets no gradient
  std::optional<double> max_norm = std::nullopt;
  double norm_type = 2;
  bool scale_grad_by_freq = false;
  bool sparse = false;
  std::optional<RowSgd> update = std::nullopt;  // instead of a gradient
};

// As torch::nn::functional::EmbeddingBagFuncOptions. The same on every
// rank, but for per_sample_weights.
struct EmbeddingBagFuncOptions {
  std::optional<double> max_norm = std::nullopt;
  double norm_type = 2;
  bool scale_grad_by_freq = false;
  std::string mode = "mean";  // or "sum", "max"
  bool sparse = false;
  // Of the input's shape and the table's dtype; for sum only. Ranks that have
  // none count each entry once. Differentiable. For lists: BagInput's.
  std::optional<at::Tensor> per_sample_weights = std::nullopt;
  bool include_last_offset = false;
  std::optional<int64_t> padding_idx = std::nullopt;  // left out of bags
  BagStrategy strategy = BagStrategy::Cheapest;
  std::optional<RowSgd> update = std::nullopt;  // instead of a gradient
};

// What one rank looks up.
struct BagInput {
  at::Tensor input;
  std::optional<at::Tensor> offsets = std::nullopt;
  std::optional<at::Tensor> per_sample_weights = std::nullopt;
};

// The rows of this rank's `input`, int32 or int64 of any shape, of a table that
// is row-wise or column-wise sharded: [*input.shape, d], plain. Ranks may have
// inputs of any number. Differentiable by weight.dtensor(): the gradient is
// dense, and every rank must run the backward pass. With max_norm the rows
// looked up are scaled first, in place, each once. Communicates. If one rank's
// input is wrong, every rank throws the same. Throws c10::TypeError,
// c10::ValueError and c10::Error as torch.distributed._shard's embedding does,
// with its texts.
TESSERA_API at::Tensor embedding(
    const at::Tensor& input,
    const ShardedTensor& weight,
    const EmbeddingFuncOptions& options = {});
// The same for the ranks that live here.
TESSERA_API std::vector<at::Tensor> embedding(
    at::TensorList inputs,
    const ShardedTensor& weight,
    const EmbeddingFuncOptions& options = {});

// The pooled rows of this rank's bags, [bags, d], plain, as at::embedding_bag
// on the inputs of all ranks would give them. `input` is 2-d, a bag a row, or
// 1-d with `offsets`. Ranks may have any number of bags and entries. Empty bags
// give zeros. Otherwise as embedding; differentiable by per_sample_weights too.
// Where the weight requires no grad, these must on every rank or on none.
TESSERA_API at::Tensor embedding_bag(
    const at::Tensor& input,
    const ShardedTensor& weight,
    const std::optional<at::Tensor>& offsets = std::nullopt,
    const EmbeddingBagFuncOptions& options = {});
// The same for the ranks that live here.
TESSERA_API std::vector<at::Tensor> embedding_bag(
    c10::ArrayRef<BagInput> inputs,
    const ShardedTensor& weight,
    const EmbeddingBagFuncOptions& options = {});

}  // namespace sharded

}  // namespace tessera
