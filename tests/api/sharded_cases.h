// Bags of ranks that have inputs of their own, beside at::embedding_bag on all
// inputs put together on one device.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "tests/api/embedding_cases.h"

namespace tessera::testing {

struct ShardedCase {
  at::Tensor table;                       // the whole value
  int64_t dim = 0;                        // that is cut
  std::vector<int64_t> order = {};        // of the ranks, by chunk
  std::vector<sharded::BagInput> inputs;  // one a rank, ascending
  sharded::EmbeddingBagFuncOptions options = {};

  ChunkShardingSpec spec() const {
    return {dim, std::vector<ShardPlacement>(order.begin(), order.end())};
  }

  std::string str() const {
    std::ostringstream out;
    out << table.scalar_type() << table.sizes() << ", " << spec().str() << ", "
        << options.mode << ", padding_idx " << options.padding_idx.value_or(-99)
        << ", max_norm " << options.max_norm.value_or(-1) << ", norm_type "
        << options.norm_type << ", include_last_offset "
        << options.include_last_offset << ", update "
        << (options.update ? options.update->lr : -1) << ", strategy "
        << static_cast<int>(options.strategy) << "\n";
    for (const auto& input : inputs) {
      out << input.input << "\n"
          << (input.offsets ? *input.offsets : at::Tensor()) << "\n"
          << (input.per_sample_weights ? *input.per_sample_weights
                                       : at::Tensor())
          << "\n";
    }
    return out.str();
  }
};

// Which elements of a list by rank are of ranks that live here.
inline std::vector<size_t> living_here(const DeviceMesh& mesh, size_t ranks) {
  std::vector<size_t> here;
  for (size_t r = 0; r < ranks; ++r) {
    const auto positions = mesh.local_positions();
    if (std::find(
            positions.begin(),
            positions.end(),
            mesh.position_of(static_cast<int64_t>(r))) != positions.end()) {
      here.push_back(r);
    }
  }
  return here;
}

// Where the bags of an input begin; then the end.
inline at::Tensor bounds_of(
    const sharded::BagInput& input, bool include_last_offset) {
  if (!input.offsets) {
    return torch::arange(input.input.size(0) + 1) * input.input.size(1);
  }
  const auto offsets = input.offsets->to(at::kLong);
  return include_last_offset
             ? offsets
             : at::cat({offsets, torch::tensor({input.input.size(0)})});
}

// One device's pooled rows of all ranks' bags, and what they were made of.
struct OnOneDevice {
  at::Tensor table;
  std::vector<at::Tensor>
      per_sample_weights;          // undefined where a rank has none
  std::vector<at::Tensor> pooled;  // by rank
};

inline OnOneDevice on_one_device(const ShardedCase& c) {
  OnOneDevice plain{c.table.detach().clone().requires_grad_(), {}, {}};
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> offsets;
  std::vector<at::Tensor> per_sample_weights;
  std::vector<int64_t> bags;
  int64_t entries = 0;
  bool weighted = false;
  for (const auto& input : c.inputs) {
    weighted |= input.per_sample_weights.has_value();
  }
  for (const auto& input : c.inputs) {
    const auto bounds = bounds_of(input, c.options.include_last_offset);
    bags.push_back(bounds.size(0) - 1);
    indices.push_back(input.input.reshape({-1}).to(at::kLong));
    offsets.push_back(bounds.narrow(0, 0, bags.back()).add(entries));
    entries += indices.back().size(0);
    plain.per_sample_weights.emplace_back();
    if (input.per_sample_weights) {
      plain.per_sample_weights.back() =
          input.per_sample_weights->detach().clone().requires_grad_();
      per_sample_weights.push_back(
          plain.per_sample_weights.back().reshape({-1}));
    } else {
      per_sample_weights.push_back(
          torch::ones({indices.back().size(0)}, c.table.options()));
    }
  }
  const auto all = at::cat(indices);
  if (c.options.max_norm) {
    const at::NoGradGuard no_grad;
    at::embedding_renorm_(
        plain.table, all, *c.options.max_norm, c.options.norm_type);
  }
  const int64_t mode = c.options.mode == "sum"    ? 0
                       : c.options.mode == "mean" ? 1
                                                  : 2;
  // Without a padding row where none is meant: ATen takes -1 for the last row.
  const auto pooled = std::get<0>(at::embedding_bag(
      plain.table,
      all,
      at::cat(offsets),
      /*scale_grad_by_freq=*/false,
      mode,
      /*sparse=*/false,
      weighted ? std::optional(at::cat(per_sample_weights)) : std::nullopt,
      /*include_last_offset=*/false,
      c.options.padding_idx));
  plain.pooled = pooled.split_with_sizes(bags);
  return plain;
}

// Runs the case over the mesh's ranks, forward and backward, and compares all
// there is with one device. Empty if all is well. Communicates.
inline std::string sharded_failure(
    const ShardedCase& c, const DeviceMesh& mesh) {
  const auto plain = on_one_device(c);
  const auto weight = ShardedTensor::from_full(
      c.table.detach().clone().requires_grad_(),
      c.spec(),
      {.same_on_all_ranks = true});
  const auto here = living_here(mesh, c.inputs.size());
  std::vector<sharded::BagInput> inputs;
  for (const size_t r : here) {
    inputs.push_back(c.inputs[r]);
    if (inputs.back().per_sample_weights) {
      inputs.back().per_sample_weights =
          inputs.back().per_sample_weights->detach().clone().requires_grad_();
    }
  }
  const auto pooled = sharded::embedding_bag(inputs, weight, c.options);
  const auto fails = [&](const std::string& what, const std::string& text) {
    return c.str() + what + ": " + text;
  };
  for (size_t i = 0; i < here.size(); ++i) {
    const auto text =
        difference(pooled[i].detach(), plain.pooled[here[i]].detach());
    if (!text.empty()) {
      return fails("rank " + std::to_string(here[i]), text);
    }
  }
  std::vector<at::Tensor> grads;
  for (size_t r = 0; r < c.inputs.size(); ++r) {
    grads.push_back(
        exact_values(plain.pooled[r].sizes(), c.table.scalar_type(), 100 + r));
  }
  torch::autograd::backward(plain.pooled, grads);
  std::vector<at::Tensor> own_grads;
  for (const size_t r : here) {
    own_grads.push_back(grads[r]);
  }
  torch::autograd::backward(pooled, own_grads);

  const auto grad = weight.grad();
  const auto& update = c.options.update;
  if (grad.defined() == update.has_value()) {
    return fails("gradient", grad.defined() ? "there is one" : "there is none");
  }
  auto table = plain.table.detach();
  if (update) {
    table = table.to(at::kDouble)
                .sub(plain.table.grad().to(at::kDouble), update->lr)
                .to(table.scalar_type());
  }
  const auto chunks = weight.local_shards();
  const auto grad_chunks =
      update ? std::vector<LocalShard>() : grad.local_shards();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto cut = [&](const at::Tensor& whole) {
      return whole.narrow(
          c.dim, chunks[i].offsets[c.dim], chunks[i].tensor.size(c.dim));
    };
    auto text = difference(chunks[i].tensor, cut(table));
    if (!text.empty()) {
      return fails("table of rank " + std::to_string(chunks[i].rank), text);
    }
    if (update) {
      continue;
    }
    text = difference(grad_chunks[i].tensor, cut(plain.table.grad()));
    if (!text.empty()) {
      return fails("gradient of rank " + std::to_string(chunks[i].rank), text);
    }
  }
  for (size_t i = 0; i < here.size(); ++i) {
    if (inputs[i].per_sample_weights) {
      const auto text = difference(
          inputs[i].per_sample_weights->grad(),
          plain.per_sample_weights[here[i]].grad());
      if (!text.empty()) {
        return fails(
            "per_sample_weights of rank " + std::to_string(here[i]), text);
      }
    }
  }
  return "";
}

inline std::vector<int64_t> ranks_in_order(int64_t count) {
  std::vector<int64_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline void expect_bags_as_on_one_device(
    ShardedCase c, const DeviceMesh& mesh) {
  if (outside(mesh)) {
    return;
  }
  if (c.order.empty()) {
    c.order = ranks_in_order(mesh.size());
  }
  EXPECT_EQ(sharded_failure(c, mesh), "");
}

// A 1-d input of these bags.
inline sharded::BagInput bags_of(
    const std::vector<std::vector<int64_t>>& bags,
    bool include_last_offset = false) {
  std::vector<int64_t> indices;
  std::vector<int64_t> offsets;
  for (const auto& bag : bags) {
    offsets.push_back(static_cast<int64_t>(indices.size()));
    indices.insert(indices.end(), bag.begin(), bag.end());
  }
  if (include_last_offset) {
    offsets.push_back(static_cast<int64_t>(indices.size()));
  }
  return {torch::tensor(indices, at::kLong), torch::tensor(offsets, at::kLong)};
}

// Bags at random; the same for the same seed.
class CaseMaker {
 public:
  explicit CaseMaker(uint64_t seed) : random_(seed), seed_(seed) {}

  int64_t below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }
  bool one_in(int64_t n) { return below(n) == 0; }

  ShardedCase make(int64_t ranks) {
    ShardedCase c;
    const std::vector<c10::ScalarType> dtypes{
        at::kFloat, at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
    const auto dtype = dtypes[below(5)];
    c.table =
        exact_values({1 + below(13), 1 + below(12)}, dtype, seed_ * 7 + 1);
    c.dim = below(2);
    c.order = ranks_in_order(ranks);
    std::shuffle(c.order.begin(), c.order.end(), random_);
    const std::vector<std::string> modes{"sum", "mean", "max"};
    c.options.mode = modes[below(3)];
    c.options.include_last_offset = one_in(3);
    c.options.strategy = static_cast<BagStrategy>(below(3));
    const int64_t rows = c.table.size(0);
    if (one_in(2)) {
      c.options.padding_idx = below(2 * rows) - rows;
    }
    // A row that is scaled is not exact: half kinds would round it twice, and
    // where its columns lie apart the last bit may differ, by which equal
    // maxima would be told apart.
    if (one_in(4) && (dtype == at::kFloat || dtype == at::kDouble) &&
        (c.dim == 0 || c.options.mode != "max")) {
      const std::vector<double> kinds{
          2, 1, 3, std::numeric_limits<double>::infinity()};
      c.options.max_norm = 1.5;
      c.options.norm_type = kinds[below(4)];
    }
    if (one_in(3)) {
      c.options.update = sharded::RowSgd{0.5};
    }
    const bool weighted = c.options.mode == "sum" && one_in(2);
    for (int64_t r = 0; r < ranks; ++r) {
      c.inputs.push_back(
          input(rows, dtype, c.options.include_last_offset, weighted));
    }
    // (Norms are not meant for such rows.)
    if (one_in(3) && !c.options.max_norm) {
      c.table = with_specials(c.table, seed_ * 7 + 2);
    }
    return c;
  }

 private:
  sharded::BagInput input(
      int64_t rows, c10::ScalarType dtype, bool include_last, bool weighted) {
    const auto index = one_in(2) ? at::kLong : at::kInt;
    const int64_t count = one_in(5) ? 0 : below(6);
    sharded::BagInput made;
    if (!include_last && one_in(3)) {
      made.input = torch::randint(
                       0,
                       rows,
                       {count, one_in(6) ? 0 : 1 + below(5)},
                       generator(random_()))
                       .to(index);
    } else {
      std::vector<std::vector<int64_t>> bags(count);
      for (auto& bag : bags) {
        bag.resize(one_in(4) ? 0 : below(7));
        for (auto& entry : bag) {
          entry = below(rows);
        }
      }
      made = bags_of(bags, include_last);
      made.input = made.input.to(index);
      made.offsets = made.offsets->to(one_in(2) ? at::kLong : at::kInt);
    }
    if (weighted) {
      made.per_sample_weights =
          exact_values(made.input.sizes(), dtype, random_());
    }
    return made;
  }

  std::mt19937_64 random_;
  uint64_t seed_;
};

}  // namespace tessera::testing
