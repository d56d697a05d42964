// Random numbers by arithmetic of our own, beside the C library's.
#include "kernels/random/random_draw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "kernels/random/random_fill.h"

namespace tessera::detail {
namespace random_draw_test {

uint64_t bits_of(uint64_t i) { return random_bits({42, 7}, i); }

TEST(RandomDraw, Logarithms) {
  EXPECT_EQ(portable_log(1.0), 0.0);
  for (uint64_t i = 0; i < 100'000; ++i) {
    const double x = 1 - unit_interval(bits_of(i));
    EXPECT_NEAR(portable_log(x), std::log(x), 4e-16 * -std::log(x)) << x;
  }
  // The smallest that are drawn.
  EXPECT_NEAR(portable_log(0x1p-53), std::log(0x1p-53), 1e-14);
  EXPECT_NEAR(portable_log(0x1p-32), std::log(0x1p-32), 1e-14);
}

TEST(RandomDraw, Cosines) {
  EXPECT_EQ(portable_cos_of_turn(0), 1.0);
  EXPECT_EQ(portable_cos_of_turn(0.25), 0.0);
  EXPECT_EQ(portable_cos_of_turn(0.5), -1.0);
  EXPECT_EQ(portable_cos_of_turn(0.75), 0.0);
  for (uint64_t i = 0; i < 100'000; ++i) {
    const double turn = static_cast<double>(bits_of(i) >> 32) * 0x1.0p-32;
    EXPECT_NEAR(
        portable_cos_of_turn(turn),
        std::cos(2 * std::numbers::pi * turn),
        1e-15)
        << turn;
  }
}

// A shard is filled with what its elements have in the whole.
TEST(RandomDraw, RegionsOfOneTensor) {
  const RandomDraw draw{.distribution = Distribution::kNormal};
  const at::Tensor whole = at::empty({6, 5, 4});
  fill_random_(whole, draw, {1, 2}, {{0, 6, 6}, {0, 5, 5}, {0, 4, 4}});
  const at::Tensor part = at::empty({2, 5, 3}, at::kDouble);
  fill_random_(part, draw, {1, 2}, {{3, 2, 6}, {0, 5, 5}, {1, 3, 4}});
  EXPECT_TRUE(
      at::equal(part.to(at::kFloat), whole.slice(0, 3, 5).slice(2, 1, 4)));
  const at::Tensor scalar = at::empty({});
  fill_random_(scalar, draw, {1, 2}, {});
  EXPECT_TRUE(at::equal(scalar, whole[0][0][0]));
  fill_random_(at::empty({0, 4}), draw, {1, 2}, {{6, 0, 6}, {0, 4, 4}});
}

}  // namespace random_draw_test
}  // namespace tessera::detail
