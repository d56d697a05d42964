// Placements of a gradient that its tensor cannot have, and gradients on
// another mesh, used to end in internal asserts, or to be taken as they were.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::testing::throws_saying;

namespace grad_placements_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);
const ts::Placement P = ts::Partial();

ts::DTensor parameter(const ts::DeviceMesh& mesh, const ts::Placement& at) {
  return ts::distribute_tensor(
      torch::ones({5, 3}).requires_grad_(),
      mesh,
      ts::Placements(mesh.ndim(), at),
      {.same_on_all_ranks = true});
}

TEST(GradPlacements, MustShardAsTheTensorDoes) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto all = [&](const ts::Placement& p) {
      return ts::Placements(mesh.ndim(), p);
    };
    const auto refused = [&](const char* caller, const auto& call) {
      if (mesh.size() > 1) {
        throws_saying<c10::ValueError>(caller, call);
      } else {
        call();
      }
    };
    for (const auto& shard : {S0, S1}) {
      for (const auto& of : {R, S0, S1}) {
        refused("[full_tensor] expected grad_placements", [&] {
          parameter(mesh, of).full_tensor(all(shard));
        });
      }
      refused("[shards] expected grad_placements", [&] {
        parameter(mesh, R).shards(all(shard));
      });
      refused("[shards] expected grad_placements", [&] {
        parameter(mesh, shard).shards(all(R));
      });
    }
    refused("[shards] expected grad_placements", [&] {
      parameter(mesh, S0).shards(all(S1));
    });
  });
}

TEST(GradPlacements, ThatFitAreTaken) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto grad_of = [&](const ts::DTensor& leaf, const ts::Placement& p) {
      leaf.full_tensor(ts::Placements(mesh.ndim(), p)).sum().backward();
      return ts::DTensor(leaf.grad()).full_tensor();
    };
    for (const auto& of : {R, S0, S1}) {
      EXPECT_TRUE(grad_of(parameter(mesh, of), R).equal(torch::ones({5, 3})));
      EXPECT_TRUE(
          grad_of(parameter(mesh, of), P)
              .equal(torch::full({5, 3}, static_cast<double>(mesh.size()))));
    }
  });
}

TEST(GradPlacements, OfAnotherMeshAreRefused) {
  ASSERT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const ts::DeviceMesh square("cpu", {0, 1, 2, 3}, {2, 2});
    const ts::DeviceMesh turned("cpu", {3, 2, 1, 0});
    for (const auto& other : {square, turned}) {
      const auto grad = ts::ones({5, 3}, other);
      for (const auto& of : {R, S0}) {
        const auto leaf = parameter(mesh, of);
        const auto local = torch::ones({5, 3}, torch::requires_grad());
        const std::vector<at::Tensor> results = {
            leaf,
            leaf * 2,
            leaf.redistribute({S1}),
            ts::DTensor::from_local(local, mesh)};
        for (const auto& result : results) {
          throws_saying<c10::ValueError>(
              "distribute that on the", [&] { result.backward(grad); });
        }
        EXPECT_FALSE(leaf.grad().defined());
        EXPECT_FALSE(local.grad().defined());
      }
    }
  }));
}

}  // namespace grad_placements_test
