// storage_offset() of every view used to be 0.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace storage_offset_test {

using Views = std::vector<at::Tensor>;

// Views of views too: where one begins depends on its base.
const std::vector<std::function<Views(const at::Tensor&)>>& views() {
  static const std::vector<std::function<Views(const at::Tensor&)>> all = {
      [](const at::Tensor& x) { return Views{x}; },
      [](const at::Tensor& x) { return Views{x.slice(1, 2, 4)}; },
      [](const at::Tensor& x) { return Views{x.slice(0, 1, 3)}; },
      [](const at::Tensor& x) { return Views{x.slice(1, 1, 6, 2)}; },
      [](const at::Tensor& x) { return Views{x.select(0, 3)}; },
      [](const at::Tensor& x) { return Views{x.select(1, 5)}; },
      [](const at::Tensor& x) { return Views{x.narrow(1, 3, 2).t()}; },
      [](const at::Tensor& x) { return Views{x.slice(0, 2).slice(1, 3)}; },
      [](const at::Tensor& x) { return Views{x.slice(0, 2).detach()}; },
      [](const at::Tensor& x) { return Views{x.slice(0, 2).view({-1})}; },
      [](const at::Tensor& x) { return Views{x.slice(1, 2).unsqueeze(0)}; },
      [](const at::Tensor& x) {
        return Views{x.slice(1, 2).expand({3, 8, 4})};
      },
      [](const at::Tensor& x) { return Views{x.diagonal(2)}; },
      [](const at::Tensor& x) { return x.split(2, 1); },
      [](const at::Tensor& x) { return x.slice(0, 4).chunk(2, 0); },
      [](const at::Tensor& x) { return x.unbind(1); },
      [](const at::Tensor& x) { return Views{x.slice(1, 2).clone()}; },
      [](const at::Tensor& x) { return Views{x.slice(1, 2) + 1}; },
      [](const at::Tensor& x) {
        return Views{at::view_as_complex(x.view({8, 3, 2})).slice(0, 2)};
      },
      [](const at::Tensor& x) {
        return Views{at::view_as_real(
            at::view_as_complex(x.view({8, 3, 2})).slice(0, 2))};
      }};
  return all;
}

TEST(StorageOffset, IsThatOfOneDevice) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto value = torch::arange(48, torch::kFloat).view({8, 6});
    for (const auto& placements : ts::testing::layouts(mesh, 2)) {
      const auto x = ts::distribute_tensor(
          value, mesh, placements, {.same_on_all_ranks = true});
      // The second time calls are planned already.
      for (int round = 0; round < 2; ++round) {
        for (size_t v = 0; v < views().size(); ++v) {
          SCOPED_TRACE(
              ts::to_string(placements) + ", view " + std::to_string(v));
          const auto wanted = views()[v](value);
          const auto actual = views()[v](x);
          ASSERT_EQ(actual.size(), wanted.size());
          for (size_t i = 0; i < wanted.size(); ++i) {
            EXPECT_EQ(actual[i].storage_offset(), wanted[i].storage_offset());
          }
        }
      }
    }
  });
}

TEST(StorageOffset, OfViewsInPlace) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    auto view = ts::ones({8, 6}, mesh).slice(1, 3);
    EXPECT_EQ(view.unsqueeze_(0).storage_offset(), 3);
    EXPECT_EQ(view.transpose_(0, 1).select(0, 2).storage_offset(), 15);
  });
}

TEST(StorageOffset, AlsoInInferenceMode) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const c10::InferenceMode mode;
    const auto x =
        ts::ones({8, 6}, mesh, ts::Placements(mesh.ndim(), ts::Shard(1)));
    EXPECT_EQ(x.slice(0, 2).view({-1}).storage_offset(), 12);
    EXPECT_EQ(x.select(1, 4).storage_offset(), 4);
  });
}

}  // namespace storage_offset_test
