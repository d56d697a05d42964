// Random numbers were drawn as doubles and then rounded: a bfloat16 uniform_
// returned its upper bound, and integers above 2^53 lost their last bits.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace random_bounds_test {

constexpr int64_t kMany = 1 << 16;

at::Tensor empty_on(const ts::DeviceMesh& mesh, at::ScalarType dtype) {
  return ts::empty(
      {kMany}, mesh, ts::Placements(mesh.ndim(), ts::Shard(0)), dtype);
}

at::Tensor drawn(const at::Tensor& tensor) {
  return ts::DTensor(tensor).full_tensor();
}

const std::vector<at::ScalarType> kFloats{
    at::kBFloat16, at::kHalf, at::kFloat, at::kDouble};

TEST(RandomBounds, UniformNeverReturnsTheUpperBound) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto dtype : kFloats) {
      for (const auto& [from, to] : std::vector<std::pair<double, double>>{
               {0, 1}, {1, 2}, {-1, 1}, {3, 3.5}, {-5, -4}, {0, 300}}) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << from << " " << to);
        const auto values =
            drawn(empty_on(mesh, dtype).uniform_(from, to)).to(at::kDouble);
        EXPECT_GE(values.min().item<double>(), from);
        EXPECT_LT(values.max().item<double>(), to);
        EXPECT_NEAR(
            values.mean().item<double>(), (from + to) / 2, (to - from) * 0.02);
      }
    }
    for (const auto dtype : kFloats) {
      const auto like = ts::DTensor(empty_on(mesh, dtype));
      EXPECT_LT(drawn(at::rand_like(like)).max().item<double>(), 1) << dtype;
      EXPECT_LT(
          ts::rand({kMany}, mesh, {}, dtype).full_tensor().max().item<double>(),
          1);
    }
    // An empty interval has one point.
    EXPECT_TRUE(drawn(empty_on(mesh, at::kFloat).uniform_(2, 2))
                    .eq(2)
                    .all()
                    .item<bool>());
  });
}

// As many different values as the dtype has bits for, evenly spaced.
TEST(RandomBounds, UniformHasTheDtypesOwnBits) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const std::vector<std::pair<at::ScalarType, int>> digits{
        {at::kBFloat16, 8},
        {at::kHalf, 11},
        {at::kFloat, 24},
        {at::kDouble, 53}};
    for (const auto& [dtype, bits] : digits) {
      const auto scaled =
          drawn(empty_on(mesh, dtype).uniform_()).to(at::kDouble) *
          std::ldexp(1.0, bits);
      EXPECT_TRUE(scaled.eq(scaled.floor()).all().item<bool>()) << dtype;
      EXPECT_TRUE(scaled.remainder(2).eq(1).any().item<bool>()) << dtype;
    }
  });
}

TEST(RandomBounds, IntegersAreExact) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const int64_t from = (int64_t{1} << 60) + 1;
    const auto big = drawn(empty_on(mesh, at::kLong).random_(from, from + 8));
    EXPECT_EQ(big.min().item<int64_t>(), from);
    EXPECT_EQ(big.max().item<int64_t>(), from + 7);
    EXPECT_EQ(std::get<0>(at::_unique(big)).numel(), 8);

    const auto odd = drawn(empty_on(mesh, at::kLong).random_());
    EXPECT_GE(odd.min().item<int64_t>(), 0);
    EXPECT_GT(odd.max().item<int64_t>(), int64_t{1} << 62);
    EXPECT_TRUE(odd.remainder(2).eq(1).any().item<bool>());

    const auto all = drawn(
        empty_on(mesh, at::kLong)
            .random_(
                std::numeric_limits<int64_t>::min(), std::optional<int64_t>()));
    EXPECT_LT(all.min().item<int64_t>(), -(int64_t{1} << 62));
    EXPECT_GT(all.max().item<int64_t>(), int64_t{1} << 62);

    // No power of two: the upper half is as likely as the lower.
    const int64_t wide = 3 * (int64_t{1} << 61);
    const auto half = drawn(empty_on(mesh, at::kLong).random_(0, wide))
                          .ge(wide / 2)
                          .to(at::kDouble)
                          .mean()
                          .item<double>();
    EXPECT_NEAR(half, 0.5, 0.02);
  });
}

TEST(RandomBounds, IntegersInEveryDtype) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto dtype :
         {at::kByte,
          at::kChar,
          at::kShort,
          at::kInt,
          at::kLong,
          at::kHalf,
          at::kBFloat16,
          at::kFloat,
          at::kDouble}) {
      SCOPED_TRACE(dtype);
      const auto values =
          drawn(empty_on(mesh, dtype).random_(3, 90)).to(at::kDouble);
      EXPECT_EQ(values.min().item<double>(), 3);
      EXPECT_EQ(values.max().item<double>(), 89);
      // The range of random_() is one device's.
      const auto mine = drawn(empty_on(mesh, dtype).random_()).to(at::kDouble);
      const auto plain = torch::empty({kMany}, dtype).random_().to(at::kDouble);
      EXPECT_GE(mine.min().item<double>(), 0);
      EXPECT_NEAR(
          mine.max().item<double>() / plain.max().item<double>(), 1, 0.01);
    }
    const auto flags = drawn(empty_on(mesh, at::kBool).random_());
    EXPECT_TRUE(flags.any().item<bool>() && !flags.all().item<bool>());
    // 2^24 + 1 is no float: rounded, it would be below the range.
    const int64_t from = (int64_t{1} << 24) + 1;
    const auto floats =
        drawn(empty_on(mesh, at::kFloat).random_(from, from + 10))
            .to(at::kDouble);
    EXPECT_GE(floats.min().item<double>(), static_cast<double>(from));
    EXPECT_LT(floats.max().item<double>(), static_cast<double>(from + 10));
  });
}

TEST(RandomBounds, DistributionsAreOneDevices) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    using T = at::Tensor&;
    const std::vector<std::pair<const char*, std::function<at::Tensor(T)>>>
        list{
            {"normal", [](T x) { return x.normal_(3, 2); }},
            {"log_normal", [](T x) { return x.log_normal_(0.5, 0.25); }},
            {"cauchy", [](T x) { return x.cauchy_(1, 2); }},
            {"exponential", [](T x) { return x.exponential_(1.5); }},
            {"geometric", [](T x) { return x.geometric_(0.2); }},
            {"uniform", [](T x) { return x.uniform_(-3, 5); }},
        };
    const auto at = torch::tensor({0.05, 0.25, 0.5, 0.75, 0.95}, at::kDouble);
    for (const auto& [name, fill] : list) {
      for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << name << " " << dtype);
        auto mine = empty_on(mesh, dtype);
        auto plain = torch::empty({kMany}, dtype);
        const auto a =
            at::quantile(drawn(fill(mine)).to(at::kDouble), at, /*dim=*/0);
        const auto b = at::quantile(fill(plain).to(at::kDouble), at, /*dim=*/0);
        EXPECT_TRUE(a.allclose(b, 0.08, 0.06)) << a << b;
      }
    }
    auto positive = empty_on(mesh, at::kHalf);
    EXPECT_GT(drawn(positive.exponential_()).min().item<double>(), 0);
    EXPECT_GE(drawn(positive.geometric_(0.9)).min().item<double>(), 1);
  });
}

TEST(RandomBounds, ComplexNumbersHaveTwoParts) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto normal = drawn(empty_on(mesh, at::kComplexDouble).normal_(0, 1));
    EXPECT_NEAR(at::real(normal).std().item<double>(), std::sqrt(0.5), 0.02);
    EXPECT_NEAR(at::imag(normal).std().item<double>(), std::sqrt(0.5), 0.02);
    EXPECT_NEAR(
        (at::real(normal) * at::imag(normal)).mean().item<double>(), 0, 0.02);
    const auto uniform = drawn(empty_on(mesh, at::kComplexFloat).uniform_());
    EXPECT_NEAR(at::imag(uniform).mean().item<double>(), 0.5, 0.02);
  });
}

// The errors are ATen's own.
TEST(RandomBounds, BadArgumentsAreRefusedAsByOneDevice) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const std::vector<std::function<void(at::Tensor)>> bad{
        [](at::Tensor x) { x.uniform_(2, 1); },
        [](at::Tensor x) { x.normal_(0, -1); },
        [](at::Tensor x) { x.exponential_(-1); },
        [](at::Tensor x) { x.geometric_(1.5); },
        [](at::Tensor x) { x.log_normal_(0, -1); },
        [](at::Tensor x) { x.bernoulli_(1.5); },
        [](at::Tensor x) { x.random_(5, 5); },
        [](at::Tensor x) { x.to(at::kByte).random_(0, 1000); },
        [](at::Tensor x) { x.to(at::kLong).uniform_(); }};
    const auto message = [](const auto& call, const at::Tensor& x) {
      try {
        call(x);
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string();
    };
    for (size_t i = 0; i < bad.size(); ++i) {
      const auto expected = message(bad[i], torch::ones({4}));
      EXPECT_NE(expected, "") << i;
      EXPECT_EQ(message(bad[i], ts::ones({4}, mesh, ts::Shard(0))), expected);
    }
  });
}

}  // namespace random_bounds_test
