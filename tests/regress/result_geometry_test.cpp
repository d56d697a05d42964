// Sizes, strides and what torch remembers of them (the number of elements,
// contiguity in every memory format) are one device's, whatever the shape.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace result_geometry_test {

std::string geometry_of(const at::Tensor& x) {
  std::ostringstream text;
  text << x.sizes() << x.strides() << x.numel() << ' '
       << x.is_non_overlapping_and_dense() << x.is_contiguous();
  if (x.dim() == 4) {
    text << x.is_contiguous(at::MemoryFormat::ChannelsLast);
  }
  if (x.dim() == 5) {
    text << x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  }
  text << x.suggest_memory_format();
  return text.str();
}

using Arrange = std::function<at::Tensor(const at::Tensor&)>;

std::vector<Arrange> arrangements(int64_t dim) {
  std::vector<Arrange> all{[](const at::Tensor& x) { return x; }};
  if (dim > 0) {
    all.emplace_back([](const at::Tensor& x) { return x.transpose(0, -1); });
    all.emplace_back([](const at::Tensor& x) { return x.unsqueeze(0); });
  }
  if (dim == 4 || dim == 5) {
    all.emplace_back([=](const at::Tensor& x) {
      return x.contiguous(
          dim == 4 ? at::MemoryFormat::ChannelsLast
                   : at::MemoryFormat::ChannelsLast3d);
    });
  }
  return all;
}

TEST(ResultGeometry, IsThatOfOneDevice) {
  const std::vector<std::vector<int64_t>> shapes{
      {},
      {0},
      {5},
      {0, 3},
      {3, 0},
      {1, 6},
      {6, 1},
      {4, 6},
      {4, 1, 3},
      {4, 3, 2, 2},
      {4, 1, 2, 2},
      {4, 3, 1, 1},
      {4, 3, 2, 2, 2},
      {2, 3, 1, 2, 1, 2}};
  EXPECT_TRUE(ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& shape : shapes) {
      const auto value = torch::rand(shape);
      for (const ts::Placement& placement :
           {ts::Placement(ts::Replicate()), ts::Placement(ts::Shard(0))}) {
        if (shape.empty() && placement.is_shard()) {
          continue;
        }
        const auto x = ts::distribute_tensor(value, mesh, {placement});
        for (const auto& arrange : arrangements(value.dim())) {
          const auto plain = arrange(value);
          const at::Tensor ours = arrange(x);
          EXPECT_EQ(geometry_of(ours), geometry_of(plain));
          EXPECT_EQ(geometry_of(ours + ours), geometry_of(plain + plain));
          EXPECT_EQ(geometry_of(ours.sum(0)), geometry_of(plain.sum(0)));
        }
      }
    }
  }));
}

}  // namespace result_geometry_test
