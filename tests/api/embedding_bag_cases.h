// Bags of rows on distributed tensors beside the same bags on one device.
#pragma once

#include <numeric>

#include "tests/api/embedding_cases.h"

namespace tessera::testing {

enum class Mode : uint8_t { Sum, Mean, Max };

struct BagCase {
  Mode mode = Mode::Sum;
  // The entries of each bag. For 2-d input all are equal.
  std::vector<int64_t> lengths = {3, 0, 6, 3, 5};
  bool by_offsets = true;  // 1-d input; otherwise 2-d
  bool weighted = false;
  bool sparse = false;
  bool include_last_offset = false;
  int64_t trailing = 0;  // entries after the end of the last bag
  std::optional<int64_t> padding_idx = std::nullopt;
  int64_t rows = 10;
  int64_t columns = 6;
  c10::ScalarType dtype = at::kDouble;
  c10::ScalarType index_dtype = at::kLong;
  bool specials = false;  // NaN and infinities in the table
  uint64_t seed = 3;
  Placements table = {};  // the layout of the weight
  Placements batch = {};  // the layout of the indices
  EmbeddingOptions strategies = {};

  int64_t bags() const { return static_cast<int64_t>(lengths.size()); }
  int64_t entries() const {
    return std::accumulate(lengths.begin(), lengths.end(), trailing);
  }

  std::string str() const {
    std::ostringstream out;
    out << "mode " << static_cast<int>(mode)
        << (by_offsets ? ", offsets" : ", 2-d") << ", lengths "
        << at::IntArrayRef(lengths) << (weighted ? ", weighted" : "")
        << (sparse ? ", sparse" : "")
        << (include_last_offset ? ", include_last_offset" : "")
        << (specials ? ", specials" : "") << ", " << trailing
        << " trailing, padding " << padding_idx.value_or(-99) << ", table "
        << rows << "x" << columns << " " << dtype << " on " << to_string(table)
        << ", indices " << index_dtype << " on " << to_string(batch)
        << ", strategy " << static_cast<int>(strategies.strategy)
        << ", bag_strategy " << static_cast<int>(strategies.bag_strategy)
        << ", seed " << seed;
    return out.str();
  }

  torch::nn::functional::EmbeddingBagFuncOptions options(
      const at::Tensor& offsets, const at::Tensor& weights) const {
    torch::nn::functional::EmbeddingBagFuncOptions options;
    switch (mode) {
      case Mode::Sum:
        options.mode(torch::kSum);
        break;
      case Mode::Mean:
        options.mode(torch::kMean);
        break;
      case Mode::Max:
        options.mode(torch::kMax);
        break;
    }
    if (by_offsets) {
      options.offsets(offsets);
    }
    if (weighted) {
      options.per_sample_weights(weights);
    }
    return options.sparse(sparse)
        .include_last_offset(include_last_offset)
        .padding_idx(padding_idx);
  }
};

struct BagData {
  at::Tensor weight, indices, offsets, per_sample_weights, grad;
};

// Values whose sums are exact, so that the order of summing does not show; few
// enough that maxima are often equal.
inline BagData data_of(const BagCase& c) {
  BagData data;
  data.weight = exact_values({c.rows, c.columns}, c.dtype, c.seed);
  if (c.specials) {
    data.weight = with_specials(data.weight, c.seed + 4);
  }
  std::vector<int64_t> sizes{c.entries()};
  if (!c.by_offsets) {
    sizes = {c.bags(), c.bags() == 0 ? 2 : c.lengths[0]};
  }
  data.indices = random_indices(c.rows, sizes, c.seed + 1, c.index_dtype);
  std::vector<int64_t> offsets{0};
  for (const int64_t length : c.lengths) {
    offsets.push_back(offsets.back() + length);
  }
  if (!c.include_last_offset) {
    offsets.pop_back();
  }
  data.offsets = torch::tensor(offsets, at::kLong).to(c.index_dtype);
  data.per_sample_weights =
      exact_values(data.indices.sizes(), c.dtype, c.seed + 2);
  data.grad = exact_values({c.bags(), c.columns}, c.dtype, c.seed + 3);
  return data;
}

// Runs the case on the mesh, forward and backward, and compares result and
// gradients with one device. Empty if all is well. Communicates.
inline std::string bag_failure(const BagCase& c, const DeviceMesh& mesh) {
  const EmbeddingScope scope(c.strategies);
  const auto leaf = [](const at::Tensor& value) {
    return value.clone().requires_grad_();
  };
  const auto data = data_of(c);
  const auto plain = leaf(data.weight);
  const auto plain_weights = leaf(data.per_sample_weights);
  BagCase on_one = c;
  on_one.sparse = false;
  // Entries after the last bag are nobody's. (ATen takes them for the last
  // bag's in some kernels, and in others makes up their gradient.)
  const auto used = [&](const at::Tensor& entries) {
    return entries.narrow(0, 0, entries.size(0) - c.trailing);
  };
  const auto expected = torch::nn::functional::embedding_bag(
      used(data.indices),
      plain,
      on_one.options(data.offsets, used(plain_weights)));
  expected.backward(data.grad);

  const auto weight = parameter(data.weight, mesh, c.table);
  const auto per_sample_weights =
      parameter(data.per_sample_weights, mesh, c.batch);
  const auto bags = torch::nn::functional::embedding_bag(
      placed(data.indices, mesh, c.batch),
      weight,
      c.options(replicated(data.offsets, mesh), per_sample_weights));
  bags.backward(replicated(data.grad, mesh));
  const auto full = DTensor(bags.detach()).full_tensor();
  if (outside(mesh)) {
    return "";
  }
  const auto context = [&](const char* what, const std::string& text) {
    return text.empty() ? text : c.str() + "\n" + what + ": " + text;
  };
  for (const auto& failure :
       {context("result", difference(full, expected.detach())),
        context(
            "gradient",
            shard_difference(weight.grad(), plain.grad(), mesh, c.table)),
        c.weighted ? context(
                         "gradient of the per_sample_weights",
                         shard_difference(
                             per_sample_weights.grad(),
                             plain_weights.grad(),
                             mesh,
                             c.batch))
                   : std::string()}) {
    if (!failure.empty()) {
      return failure;
    }
  }
  const bool stored = DTensor(weight.grad()).shards()[0].is_sparse();
  return stored == c.sparse ? std::string()
                            : c.str() + "\nthe gradient is " +
                                  (stored ? "" : "not ") + "sparse";
}

}  // namespace tessera::testing
