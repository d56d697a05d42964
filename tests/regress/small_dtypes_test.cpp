// Types that ATen does not add. Casts of float8 were refused in every layout
// ("Promotion for Float8 Types is not supported"), and so were rows of sharded
// tensors of float8 and of unsigned integers beyond bytes ("add_stub").
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace small_dtypes_test {

using T = const at::Tensor&;

constexpr at::ScalarType kDtypes[] = {
    at::kFloat8_e4m3fn,
    at::kFloat8_e5m2,
    at::kUInt16,
    at::kUInt32,
    at::kUInt64};

const std::vector<std::function<at::Tensor(T, T)>>& calls() {
  static const std::vector<std::function<at::Tensor(T, T)>> all{
      [](T x, T) { return x.to(at::kFloat); },
      [](T x, T) { return x.to(at::kFloat).to(x.scalar_type()); },
      [](T x, T) { return x.select(0, 3); },
      [](T x, T) { return x.select(1, 0); },
      [](T x, T) { return x.slice(0, 2, 5); },
      [](T x, T) { return x.slice(0, 7, 8); },
      [](T x, T i) { return x.index({i}); },
      [](T x, T i) { return x.index_select(0, i); },
      [](T x, T i) { return at::embedding(x, i); },
      [](T x, T i) {
        return x.view(at::kByte).gather(0, i.unsqueeze(1)).clone();
      },
  };
  return all;
}

at::Tensor bytes(T tensor) { return tensor.contiguous().view(at::kByte); }

TEST(SmallDtypes, CastsAndRows) {
  const auto ids = torch::tensor({6, 1});
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto dtype : kDtypes) {
      // With both zeros and, for floats, numbers that a sum would change.
      auto value = torch::arange(16, at::kFloat).view({8, 2}).sub(3);
      value =
          (at::isFloatingType(dtype) ? value * -0.25 : value.abs()).to(dtype);
      for (const auto& layout : ts::testing::layouts(mesh, 2)) {
        const auto x = ts::distribute_tensor(value, mesh, layout);
        for (size_t c = 0; c < calls().size(); ++c) {
          SCOPED_TRACE(
              std::string(c10::toString(dtype)) + ", call " +
              std::to_string(c) + ", " + ts::to_string(layout));
          const auto expected = calls()[c](value, ids);
          const auto actual =
              ts::DTensor(calls()[c](x, ts::distribute_tensor(ids, mesh)))
                  .full_tensor();
          EXPECT_EQ(actual.dtype(), expected.dtype());
          EXPECT_TRUE(bytes(actual).equal(bytes(expected)));
        }
      }
    }
  });
}

// Numbers that are too large for some kinds of float8 become NaN, which would
// win over the largest.
TEST(SmallDtypes, APendingMaximumIsReducedBeforeItIsNarrowed) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const auto value = torch::tensor({-1e9F, -1e9F, 2.F, 1.F});
    const auto most = ts::distribute_tensor(value, mesh, {ts::Shard(0)})
                          .amax(0)
                          .to(at::kFloat8_e4m3fn);
    EXPECT_EQ(
        ts::DTensor(most).full_tensor().to(at::kFloat).item<float>(), 2.F);
  });
}

}  // namespace small_dtypes_test
