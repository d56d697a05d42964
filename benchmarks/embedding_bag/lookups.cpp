#include "embedding_bag/lookups.h"

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <array>
#include <memory>

#include "tessera/sharded.h"

namespace tessera::bench {

namespace {

constexpr double kLearningRate = 0.1;
constexpr std::array<const char*, 2> kKinds{"uniform", "zipf"};
constexpr std::array<const char*, 3> kModes{"sum", "mean", "max"};

// A parameter that is looked up in, with its optimizer.
struct Trained {
  Trained(const at::Tensor& parameter, const at::Tensor& memory)
      : optimizer(
            std::vector<at::Tensor>{parameter},
            torch::optim::SGDOptions(kLearningRate)),
        memory(memory),
        first(memory.clone()) {}

  void step(const at::Tensor& pooled, const at::Tensor& grad) {
    pooled.backward(grad);
    optimizer.step();
    optimizer.zero_grad();
  }

  void restore() { memory.copy_(first); }

  torch::optim::SGD optimizer;
  at::Tensor memory;  // of the table's values, or this rank's share
  at::Tensor first;   // what was there at first
};

struct Sharded {
  Sharded(const BagSize& size, int64_t dim, int64_t rank, int64_t ranks)
      : shard(
            dim == 0 ? table_block(
                           rank * (size.rows / ranks),
                           size.rows / ranks,
                           0,
                           size.columns)
                     : table_block(
                           0,
                           size.rows,
                           rank * (size.columns / ranks),
                           size.columns / ranks)),
        weight(ShardedTensor::from_local_shards(
                   {shard}, {size.rows, size.columns}, spec(dim, ranks))
                   .requires_grad_()),
        trained(weight.dtensor(), shard) {}

  static ChunkShardingSpec spec(int64_t dim, int64_t ranks) {
    std::vector<ShardPlacement> placements;
    for (int64_t r = 0; r < ranks; ++r) {
      placements.emplace_back(r);
    }
    return {dim, std::move(placements)};
  }

  at::Tensor shard;
  ShardedTensor weight;
  Trained trained;
};

BagVariant sharded_variant(
    const std::string& name,
    const std::shared_ptr<Sharded>& table,
    const at::Tensor& indices,
    const at::Tensor& grad,
    const sharded::EmbeddingBagFuncOptions& options) {
  const auto forward = [=] {
    return sharded::embedding_bag(
        indices, table->weight, std::nullopt, options);
  };
  const auto step = [=] {
    if (options.update.has_value()) {
      forward().backward(grad);
    } else {
      table->trained.step(forward(), grad);
    }
  };
  return {name, forward, step, [=] { table->trained.restore(); }};
}

// at::embedding_bag on a distributed tensor of all ranks' indices, with sparse
// gradients (but of maxima, as on one device).
BagVariant distributed_variant(
    const std::string& name,
    const std::shared_ptr<Sharded>& table,
    const at::Tensor& indices,
    const at::Tensor& grad,
    int64_t mode,
    LookupStrategy strategy) {
  const DTensor weight = table->weight.dtensor();
  const auto flat =
      DTensor::from_local(indices.flatten(), weight.mesh(), {Shard(0)});
  const auto offsets = at::arange(0, flat.numel(), indices.size(1), at::kLong);
  const auto forward = [=] {
    const EmbeddingScope scope({.strategy = strategy});
    const auto pooled = std::get<0>(at::embedding_bag(
        weight, flat, offsets, false, mode, /*sparse=*/mode != 2));
    return DTensor(pooled).to_local();
  };
  return {
      name,
      forward,
      [=] { table->trained.step(forward(), grad); },
      [=] { table->trained.restore(); }};
}

BagVariant plain_variant(
    const std::string& name,
    const at::Tensor& weight,
    const std::shared_ptr<Trained>& trained,
    const at::Tensor& indices,
    const at::Tensor& grad,
    int64_t mode,
    bool sparse) {
  const auto flat = indices.flatten();
  const auto offsets =
      at::arange(0, indices.numel(), indices.size(1), at::kLong);
  const auto forward = [=] {
    return std::get<0>(
        at::embedding_bag(weight, flat, offsets, false, mode, sparse));
  };
  return {
      name,
      forward,
      [=] { trained->step(forward(), grad); },
      [=] { trained->restore(); }};
}

}  // namespace

std::vector<BagLookup> sharded_lookups(
    const BagSize& size, int64_t rank, int64_t ranks) {
  const auto grad = bag_gradient(size);
  std::vector<BagLookup> lookups;
  for (const int64_t dim : {0, 1}) {
    const auto table = std::make_shared<Sharded>(size, dim, rank, ranks);
    const std::string layout = dim == 0 ? ", row-wise, " : ", column-wise, ";
    for (const std::string kind : kKinds) {
      const auto indices = bag_indices(size, kind, rank);
      for (size_t m = 0; m < kModes.size(); ++m) {
        const std::string mode = kModes[m];
        BagLookup lookup{kind + layout + mode, false, {}};
        const auto add =
            [&](const char* name, BagStrategy strategy, bool fused) {
              sharded::EmbeddingBagFuncOptions options{
                  .mode = mode, .strategy = strategy};
              if (fused) {
                options.update = sharded::RowSgd{kLearningRate};
              }
              lookup.variants.push_back(
                  sharded_variant(name, table, indices, grad, options));
            };
        add("ours", BagStrategy::Cheapest, true);
        add("ours, torch::optim::SGD", BagStrategy::Cheapest, false);
        if (dim == 0) {
          add("ours, Pooled", BagStrategy::Pooled, true);
          add("ours, Rows", BagStrategy::Rows, true);
          for (const auto variant :
               {LookupStrategy::Exchange, LookupStrategy::Gather}) {
            lookup.variants.push_back(distributed_variant(
                variant == LookupStrategy::Gather
                    ? "ours, at::embedding_bag, Gather"
                    : "ours, at::embedding_bag",
                table,
                indices,
                grad,
                static_cast<int64_t>(m),
                variant));
          }
        }
        lookups.push_back(std::move(lookup));
      }
    }
  }
  return lookups;
}

std::vector<BagLookup> plain_lookups(const BagSize& size, int64_t rank) {
  const auto grad = bag_gradient(size);
  at::Tensor weight;
  std::shared_ptr<Trained> trained;
  std::shared_ptr<Sharded> ours;
  if (rank == 0) {
    weight = table_block(0, size.rows, 0, size.columns);
    const auto memory = weight.detach();
    trained = std::make_shared<Trained>(weight.requires_grad_(), memory);
    ours = std::make_shared<Sharded>(size, 0, 0, 1);
  }
  std::vector<BagLookup> lookups;
  for (const std::string kind : kKinds) {
    const auto indices = bag_indices(size, kind, 0);
    for (size_t mode = 0; mode < kModes.size(); ++mode) {
      BagLookup lookup{kind + ", one process, " + kModes[mode], true, {}};
      for (const bool sparse : {false, true}) {
        if (sparse && mode == 2) {
          continue;  // it has none of maxima
        }
        lookup.variants.push_back(plain_variant(
            sparse ? "plain, sparse" : "plain",
            weight,
            trained,
            indices,
            grad,
            static_cast<int64_t>(mode),
            sparse));
      }
      lookup.variants.push_back(sharded_variant(
          "ours",
          ours,
          indices,
          grad,
          {.mode = kModes[mode], .update = sharded::RowSgd{kLearningRate}}));
      lookups.push_back(std::move(lookup));
    }
  }
  return lookups;
}

}  // namespace tessera::bench
