// Batch norm writes its running statistics, which its schema does not say:
// those of a module with sharded channels were left as they had been.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace running_statistics_test {

TEST(RunningStatistics, AreThoseOfOneDevice) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = torch::arange(120, at::kDouble).view({5, 6, 4}).sin();
    const auto zeros = at::zeros({6}, at::kDouble);
    const auto ones = at::ones({6}, at::kDouble);
    const auto mean = zeros.clone();
    const auto var = ones.clone();
    const auto wanted =
        at::batch_norm(value, ones, zeros, mean, var, true, 0.1, 1e-5, false);
    const std::vector<ts::Placement> inputs{
        ts::Replicate(), ts::Shard(0), ts::Shard(1), ts::Shard(2)};
    for (const auto& input : inputs) {
      for (const auto& channels : {ts::Replicate(), ts::Shard(0)}) {
        SCOPED_TRACE(input.str() + " " + channels.str());
        const auto x = ts::distribute_tensor(value, mesh, {input});
        const auto at = [&](const at::Tensor& t) {
          return ts::distribute_tensor(t, mesh, {channels});
        };
        const auto running_mean = at(zeros);
        const auto running_var = at(ones);
        const auto y = at::batch_norm(
            x,
            at(ones),
            at(zeros),
            running_mean,
            running_var,
            true,
            0.1,
            1e-5,
            false);
        EXPECT_TRUE(at::allclose(ts::DTensor(y).full_tensor(), wanted));
        EXPECT_TRUE(at::allclose(running_mean.full_tensor(), mean));
        EXPECT_TRUE(at::allclose(running_var.full_tensor(), var));
        EXPECT_EQ(
            ts::to_string(running_mean.placements()),
            ts::to_string({channels}));
      }
    }
  });
}

}  // namespace running_statistics_test
