// from_local with run_check used to take shards of which only some require
// grad: a backward pass that communicates then runs on some ranks only.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace from_local_requires_grad_test {

TEST(FromLocalRequiresGrad, IsComparedByRunCheck) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto make = [&](int64_t which, const ts::Placement& placement) {
      std::vector<at::Tensor> locals;
      for (const int64_t position : mesh.local_positions()) {
        locals.push_back(torch::ones({2, 3}).requires_grad_(position == which));
      }
      return ts::DTensor::from_local(
          locals,
          mesh,
          ts::Placements(mesh.ndim(), placement),
          {.run_check = true});
    };
    for (const auto& placement :
         {ts::Replicate(), ts::Shard(0), ts::Partial()}) {
      EXPECT_FALSE(make(-1, placement).requires_grad());
      for (const int64_t which : {int64_t{0}, mesh.size() - 1}) {
        if (mesh.size() == 1) {
          EXPECT_TRUE(make(which, placement).requires_grad());
          continue;
        }
        ts::testing::throws_saying<c10::ValueError>(
            "another rank differs", [&] { make(which, placement); });
        // Without a graph it does not matter.
        const torch::NoGradGuard no_grad;
        EXPECT_FALSE(make(which, placement).requires_grad());
      }
    }
  });
}

}  // namespace from_local_requires_grad_test
