// Lookups in a sharded table beside the same lookup on one device.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace tessera::testing {

inline at::Generator generator(uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

// Small multiples of a half: sums of them are exact in every dtype.
inline at::Tensor exact_values(
    at::IntArrayRef sizes, c10::ScalarType dtype, uint64_t seed) {
  return torch::randint(-6, 7, sizes, generator(seed)).div(2).to(dtype);
}

// The same values, a quarter of them NaN or infinite: what is merged from
// several ranks must keep these too.
inline at::Tensor with_specials(at::Tensor values, uint64_t seed) {
  const auto which = torch::randint(0, 12, values.sizes(), generator(seed));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  values.masked_fill_(which.eq(0), std::numeric_limits<double>::quiet_NaN());
  values.masked_fill_(which.eq(1), kInfinity);
  return values.masked_fill_(which.eq(2), -kInfinity);
}

inline at::Tensor random_indices(
    int64_t rows,
    at::IntArrayRef sizes,
    uint64_t seed,
    c10::ScalarType dtype = at::kLong) {
  return torch::randint(0, rows, sizes, generator(seed)).to(dtype);
}

inline std::vector<at::Tensor> local_shards(
    const at::Tensor& value, const DeviceMesh& mesh, PlacementsRef placements) {
  const auto all = shards_of(value, mesh, placements, 0);
  std::vector<at::Tensor> here;
  for (const int64_t position : mesh.local_positions()) {
    here.push_back(all[position]);
  }
  return here;
}

// A parameter of this value: a leaf that requires grad, and whose gradient
// comes in its own layout.
inline at::Tensor parameter(
    const at::Tensor& value, const DeviceMesh& mesh, PlacementsRef placements) {
  return distribute_tensor(
      value.detach().clone().requires_grad_(),
      mesh,
      placements,
      {.same_on_all_ranks = true});
}

inline DTensor placed(
    const at::Tensor& value, const DeviceMesh& mesh, PlacementsRef placements) {
  return distribute_tensor(
      value, mesh, placements, {.same_on_all_ranks = true});
}

inline DTensor replicated(const at::Tensor& value, const DeviceMesh& mesh) {
  return placed(value, mesh, Placements(mesh.ndim(), Replicate()));
}

struct LookupCase {
  at::Tensor weight;
  at::Tensor indices;
  Placements table = {};  // the layout of the weight
  Placements batch = {};  // the layout of the indices
  int64_t padding_idx = -1;
  bool scale_grad_by_freq = false;
  bool sparse = false;
  LookupStrategy strategy = LookupStrategy::Cheapest;

  at::Tensor rows_of(const at::Tensor& table, const at::Tensor& at) const {
    // The gradient of one device is dense for either: where it is sparse, it
    // fails for a scalar index with a padding row.
    const bool stores_rows = sparse && is_dtensor(table);
    return at::embedding(
        table, at, padding_idx, scale_grad_by_freq, stores_rows);
  }

  std::string str() const {
    std::ostringstream out;
    out << weight.sizes() << weight.dtype() << " on " << to_string(table)
        << ", indices " << indices.sizes() << indices.dtype() << " on "
        << to_string(batch) << ", padding_idx " << padding_idx
        << (scale_grad_by_freq ? ", by frequency" : "")
        << (sparse ? ", sparse" : "") << ", strategy "
        << static_cast<int>(strategy);
    return out.str();
  }
};

// What comes out: each mesh dimension by itself. MaskP where rows are cut,
// Shard(last) where columns are, otherwise as the indices lie.
inline Placements expected_output(const LookupCase& c) {
  Placements output;
  for (size_t m = 0; m < c.table.size(); ++m) {
    if (c.table[m].is_shard(1)) {
      output.push_back(Shard(c.indices.dim()));
    } else if (c.table[m].is_shard(0) && c.batch[m].is_replicate()) {
      output.push_back(MaskPartial(c.weight.sizes(), 0));
    } else {
      output.push_back(c.batch[m]);
    }
  }
  return output;
}

// How shards differ from those of `expected`; they may be sparse.
inline std::string shard_difference(
    const at::Tensor& actual,
    const at::Tensor& expected,
    const DeviceMesh& mesh,
    PlacementsRef placements) {
  if (DTensor(actual).placements() != placements) {
    return "has placements " + to_string(DTensor(actual).placements()) +
           ", not " + to_string(placements);
  }
  const auto shards = DTensor(actual.detach()).shards();
  const auto wanted = local_shards(expected, mesh, placements);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto dense = shards[i].is_sparse() ? shards[i].to_dense() : shards[i];
    const auto text = difference(dense, wanted[i]);
    if (!text.empty()) {
      return "shard " + std::to_string(i) + ": " + text;
    }
  }
  return "";
}

// Runs the case on the mesh, forward and backward, and compares output,
// gradient and their layouts with one device. Empty if all is well.
// Communicates.
inline std::string lookup_failure(const LookupCase& c, const DeviceMesh& mesh) {
  const EmbeddingScope scope({.strategy = c.strategy});
  const auto grad = exact_values(
      [&] {
        auto sizes = c.indices.sizes().vec();
        sizes.push_back(c.weight.size(1));
        return sizes;
      }(),
      c.weight.scalar_type(),
      7);
  const auto plain = c.weight.detach().clone().requires_grad_();
  const auto expected = c.rows_of(plain, c.indices);
  expected.backward(grad);

  const auto weight = parameter(c.weight, mesh, c.table);
  const auto rows = c.rows_of(weight, placed(c.indices, mesh, c.batch));
  const auto output = expected_output(c);
  if (mesh.size() > 1 && DTensor(rows).placements() != PlacementsRef(output)) {
    return c.str() + ": the output has placements " +
           to_string(DTensor(rows).placements()) + ", not " + to_string(output);
  }
  const auto full = DTensor(rows.detach()).full_tensor();
  auto text = outside(mesh) ? "" : difference(full, expected.detach());
  if (!text.empty()) {
    return c.str() + ": output: " + text;
  }
  rows.backward(replicated(grad, mesh));
  if (!weight.grad().defined()) {
    return c.str() + ": no gradient";
  }
  text = shard_difference(weight.grad(), plain.grad(), mesh, c.table);
  return text.empty() ? "" : c.str() + ": gradient: " + text;
}

inline void expect_as_on_one_device(
    const LookupCase& c, const DeviceMesh& mesh) {
  EXPECT_EQ(lookup_failure(c, mesh), "");
}

}  // namespace tessera::testing
