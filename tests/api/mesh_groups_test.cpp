// Meshes from tensors, and the groups behind them.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::testing::throws_saying;

namespace mesh_groups_test {

TEST(DeviceMeshOf, ATensorOfRanks) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh&) {
    const auto ranks = torch::tensor({{0, 2}, {1, 3}});
    const auto mesh = ts::device_mesh("cpu", ranks, {"a", "b"});
    EXPECT_EQ(mesh, ts::DeviceMesh("cpu", {0, 2, 1, 3}, {2, 2}, {"a", "b"}));
    throws_saying<c10::ValueError>(
        "tensor of integers", [] { ts::device_mesh("cpu", torch::ones({2})); });
  });
}

TEST(GetGroup, IsTheC10dGroupOfThisRank) {
  ts::testing::with_mesh({2, 2}, [](const ts::DeviceMesh& mesh) {
    if (mesh.simulated()) {
      throws_saying<c10::Error>("a simulated world has no process groups", [&] {
        ts::get_group(mesh, 0);
      });
      return;
    }
    for (int64_t dim = 0; dim < 2; ++dim) {
      const auto group = ts::get_group(mesh, dim);
      EXPECT_EQ(group->getSize(), 2);
      EXPECT_EQ(group->getRank(), mesh.get_local_rank(dim));
      std::vector<at::Tensor> ones{torch::ones({3})};
      group->allreduce(ones)->wait();
      EXPECT_TRUE(ones[0].equal(torch::full({3}, 2.0)));
    }
    throws_saying<c10::IndexError>(
        "out of range", [&] { ts::get_group(mesh, 2); });
  });
}

}  // namespace mesh_groups_test
