// distribute_tensor of a tensor that is no leaf, with placements of the wrong
// length, used to complain about the length first.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace distribute_check_order_test {

TEST(DistributeCheckOrder, LeavesComeBeforeLengths) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto result = torch::ones({4, 3}, torch::requires_grad()) * 2;
    const ts::Placements too_many(mesh.ndim() + 1, ts::Shard(0));
    const ts::Placements out_of_range(mesh.ndim(), ts::Shard(7));
    for (const auto& placements : {too_many, out_of_range}) {
      ts::testing::throws_saying<c10::Error>("distribute leaf tensor", [&] {
        ts::distribute_tensor(result, mesh, placements);
      });
      ts::testing::throws_saying<c10::Error>("distribute leaf tensor", [&] {
        ts::distribute_(result, mesh, placements);
      });
    }
    ts::testing::throws_saying<c10::ValueError>(
        "must have the same length",
        [&] { ts::distribute_tensor(torch::ones({4}), mesh, too_many); });
  });
}

}  // namespace distribute_check_order_test
