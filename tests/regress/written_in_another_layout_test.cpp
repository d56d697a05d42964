// An op in place that no row can keep in the layout of what it writes runs on
// gathered inputs: index_add_ into a row-wise sharded tensor was refused.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace written_in_another_layout_test {

TEST(WrittenInAnotherLayout, KeepsItsLayout) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = torch::arange(30, at::kDouble).view({6, 5});
    const auto source = torch::arange(10, at::kDouble).view({2, 5});
    const auto index = torch::tensor({4, 1});
    const auto expected = value.clone().index_add_(0, index, source);
    const auto whole = [&](const at::Tensor& t) {
      return ts::distribute_tensor(t, mesh, {ts::Replicate()});
    };
    // Twice: the second call finds the plan of the first.
    for (int i = 0; i < 2; ++i) {
      auto x = ts::distribute_tensor(value.clone(), mesh, {ts::Shard(0)});
      x.index_add_(0, whole(index), whole(source));
      EXPECT_EQ(ts::to_string(x.placements()), "[S(0)]");
      EXPECT_TRUE(x.full_tensor().equal(expected));
      const ts::Strict strict;
      EXPECT_THROW(
          x.index_add_(0, whole(index), whole(source)),
          c10::NotImplementedError);
    }
  });
}

}  // namespace written_in_another_layout_test
