// A sparse gradient of a table whose rows are sharded was copied once more when
// autograd put it into the table's grad: a third of the backward pass.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::testing::for_each_mesh;

namespace sparse_gradient_not_copied_test {

ts::Placements rows_sharded(const ts::DeviceMesh& mesh) {
  ts::Placements placements(mesh.ndim(), ts::Replicate());
  placements[0] = ts::Shard(0);
  return placements;
}

// Where the values of this process's first shard are.
const void* values_of(const at::Tensor& grad) {
  return ts::DTensor(grad).shards()[0]._values().const_data_ptr();
}

// Ranks outside the mesh have nothing to compare.
void expect_all(const at::Tensor& grad, float value) {
  const auto full = ts::DTensor(grad).full_tensor();
  if (!ts::testing::outside(ts::DTensor(grad).mesh())) {
    EXPECT_TRUE(at::equal(full.to_dense(), torch::full({12, 5}, value)));
  }
}

struct Lookup {
  explicit Lookup(const ts::DeviceMesh& mesh)
      : table(ts::distribute_tensor(
            torch::arange(60, torch::kFloat).view({12, 5}).requires_grad_(),
            mesh,
            rows_sharded(mesh))),
        ids(ts::distribute_tensor(
            torch::arange(24).remainder(12),
            mesh,
            ts::Placements(mesh.ndim(), ts::Replicate()))) {}

  at::Tensor run() const {
    return at::embedding(table, ids, -1, false, /*sparse=*/true).sum();
  }

  at::Tensor table;
  at::Tensor ids;
};

TEST(SparseGradient, AutogradKeepsItsMemory) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const Lookup lookup(mesh);
    const void* seen = nullptr;
    lookup.table.register_hook([&](const at::Tensor& grad) {
      if (!ts::testing::outside(mesh)) {
        seen = values_of(grad);
      }
    });
    lookup.run().backward();
    if (!ts::testing::outside(mesh)) {
      EXPECT_EQ(values_of(lookup.table.grad()), seen);
    }
    expect_all(lookup.table.grad(), 2);
  });
}

TEST(SparseGradient, WhoHoldsItHasItToItself) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const Lookup lookup(mesh);
    at::Tensor held;
    lookup.table.register_hook([&](const at::Tensor& grad) { held = grad; });
    lookup.run().backward();
    {
      const torch::NoGradGuard no_grad;
      lookup.table.mutable_grad().mul_(3);
    }
    expect_all(held, 2);
    expect_all(lookup.table.grad(), 6);
  });
}

}  // namespace sparse_gradient_not_copied_test
