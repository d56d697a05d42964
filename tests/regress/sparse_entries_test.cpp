// The entries of a sparse gradient whose rows are sharded are gathered from the
// shards into a copy. After a write into the gradient that copy, made anew, was
// refused as out of date. And a sparse tensor over a slice of a mesh had no
// entries at all.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace sparse_entries_test {

constexpr int64_t kRows = 9;
constexpr int64_t kColumns = 8;

at::Tensor table_value() {
  return torch::arange(kRows * kColumns, torch::kDouble)
      .view({kRows, kColumns});
}

at::Tensor sparse_gradient(const at::Tensor& table, const at::Tensor& ids) {
  const auto rows = torch::embedding(
      table, ids, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, true);
  rows.square().sum().backward();
  return table.grad();
}

// A table over `mesh`, and the gradient of some of its rows.
struct Pair {
  at::Tensor table;
  at::Tensor grad;
};

Pair on_one_device() {
  const auto table = table_value().requires_grad_();
  const auto ids = torch::tensor({8, 0, 8, 3}, torch::kLong);
  return {table.detach(), sparse_gradient(table, ids).coalesce()};
}

Pair over(const ts::DeviceMesh& mesh, const ts::Placement& layout) {
  ts::Placements placements(mesh.ndim(), ts::Replicate());
  placements.back() = layout;
  const auto table =
      ts::distribute_tensor(table_value(), mesh, placements).requires_grad_();
  const auto ids = ts::distribute_tensor(
      torch::tensor({8, 0, 8, 3}, torch::kLong),
      mesh,
      ts::Placements(mesh.ndim(), ts::Replicate()));
  return {table.detach(), sparse_gradient(table, ids).coalesce()};
}

// Entries that live here, as a dense tensor: rows that live elsewhere are zero.
at::Tensor dense_entries(const at::Tensor& sparse) {
  const auto indices = ts::DTensor(sparse._indices()).full_tensor();
  const auto values = ts::DTensor(sparse._values()).full_tensor();
  EXPECT_EQ(sparse._nnz(), values.size(0));
  EXPECT_EQ(indices.size(1), values.size(0));
  return torch::zeros({kRows, kColumns}, torch::kDouble)
      .index_add_(0, indices[0], values);
}

// The rows of `value` that this process holds of `like`.
at::Tensor rows_here(const at::Tensor& value, const at::Tensor& like) {
  const ts::DTensor layout(like);
  auto kept = torch::zeros_like(value);
  for (const int64_t position : layout.mesh().local_positions()) {
    const auto rows =
        ts::local_range(kRows, 0, layout.mesh(), layout.placements(), position);
    kept.narrow(0, rows.begin, rows.size)
        .copy_(value.narrow(0, rows.begin, rows.size));
  }
  return kept;
}

void expect_entries(const at::Tensor& sparse, const at::Tensor& whole) {
  EXPECT_TRUE(dense_entries(sparse).equal(rows_here(whole, sparse)))
      << dense_entries(sparse) << rows_here(whole, sparse);
}

const std::vector<ts::Placement>& tables() {
  static const std::vector<ts::Placement> all{
      ts::Shard(0), ts::Shard(1), ts::Replicate()};
  return all;
}

TEST(SparseEntries, AreReadAfterAWrite) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& layout : tables()) {
      SCOPED_TRACE(layout.str());
      const auto plain = on_one_device();
      const auto spread = over(mesh, layout);
      expect_entries(spread.grad, plain.grad.to_dense());
      for (int i = 0; i < 2; ++i) {
        plain.grad.mul_(2);
        spread.grad.mul_(2);
        expect_entries(spread.grad, plain.grad.to_dense());
      }
      const auto masked = spread.table.sparse_mask(spread.grad);
      const auto expected = plain.table.sparse_mask(plain.grad).to_dense();
      // The result lives where entries do; its rows are those of `grad`.
      EXPECT_TRUE(
          dense_entries(masked).equal(rows_here(expected, spread.grad)));
    }
  });
}

// What was read before the write is out of date, and says so.
TEST(SparseEntries, OfBeforeAWriteAreRefused) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    if (!mesh.simulated()) {
      return;  // one shard here: entries are its own, no copy
    }
    const auto spread = over(mesh, ts::Shard(0));
    const auto values = spread.grad._values();
    spread.grad.mul_(2);
    ts::testing::throws_saying<c10::Error>("out of date", [&] { values + 0; });
    const auto again = spread.grad._values();
    EXPECT_TRUE(ts::DTensor(again).full_tensor().equal(
        on_one_device().grad._values() * 2));
  });
}

TEST(SparseEntries, OfASliceOfAMesh) {
  const bool ran =
      ts::testing::with_mesh({2, 2}, [](const ts::DeviceMesh& unnamed) {
        const std::vector<std::string> names{"dp", "tp"};
        const auto mesh =
            ts::DeviceMesh("cpu", unnamed.all_ranks(), unnamed.shape(), names);
        for (const char* dim : {"dp", "tp"}) {
          SCOPED_TRACE(dim);
          for (const auto& layout : tables()) {
            SCOPED_TRACE(layout.str());
            const auto plain = on_one_device();
            const auto spread = over(mesh[dim], layout);
            if (mesh.simulated() && layout.is_shard(0)) {
              // Each copy of the slice may have entries of its own.
              ts::testing::throws_saying<c10::NotImplementedError>(
                  "a slice of a mesh", [&] { spread.grad._values(); });
              continue;
            }
            spread.grad.mul_(2);
            plain.grad.mul_(2);
            expect_entries(spread.grad, plain.grad.to_dense());
          }
        }
      });
  EXPECT_TRUE(ran);
}

}  // namespace sparse_entries_test
