// Random numbers of every kind, each from the 64 random bits of its element.
// Only additions, multiplications, divisions and square roots of doubles, each
// rounded by itself: every compiler and device gives the same bits, which no
// library's logarithm and cosine promise. (Compile without contraction to
// fused multiply-adds.)
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/philox.h"

namespace tessera::detail {

enum class Distribution : int32_t {
  kUniform,      // [a, b)
  kNormal,       // mean a, standard deviation b
  kExponential,  // of rate a
  kBernoulli,    // 1 with probability a, else 0
  kInteger,      // from + a number below `range`, as a double
};

struct RandomDraw {
  Distribution distribution = Distribution::kUniform;
  double a = 0;
  double b = 1;
  int64_t from = 0;
  uint64_t range = 0;
};

// Which numbers: those of the op-th random op after a seed.
struct RandomStream {
  uint64_t seed;
  uint64_t op;
};

// The 64 random bits of the element with this global index.
TESSERA_HOST_DEVICE inline uint64_t random_bits(
    RandomStream stream, uint64_t index) {
  const PhiloxWords words = philox(stream.seed, index / 2, stream.op);
  const bool odd = index % 2 == 1;
  const uint64_t high = odd ? words.at[2] : words.at[0];
  return high << 32 | (odd ? words.at[3] : words.at[1]);
}

// Natural logarithm of a normal number above 0.
TESSERA_HOST_DEVICE inline double portable_log(double x) {
  uint64_t bits = 0;
  memcpy(&bits, &x, sizeof(x));
  auto exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
  double m = 0;
  memcpy(&m, &bits, sizeof(m));  // in [1, 2)
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log(m) = 2 artanh(s): s is below 0.172, so eleven terms do.
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double sum = 1.0 / 23;
  for (int k = 21; k >= 3; k -= 2) {
    sum = sum * z + 1.0 / k;
  }
  // The logarithm of 2 in two parts: the first times an exponent is exact.
  const double high = exponent * 0x1.62e42fefa38p-1;
  const double low = exponent * 0x1.ef35793c7673p-45;
  return high + (2 * s + (2 * s * z * sum + low));
}

// The cosine of `turn` turns; `turn` is in [0, 1).
TESSERA_HOST_DEVICE inline double portable_cos_of_turn(double turn) {
  // Whole quarters, exactly, and a rest of at most half a quarter.
  const double quarters = turn * 4;
  const int nearest = static_cast<int>(quarters + 0.5);
  const double angle = (quarters - nearest) * 1.5707963267948966;
  const double z = angle * angle;
  const bool is_sine = nearest % 2 == 1;
  // 1 - z/2! + z^2/4! - ..., or the same for the sine over the angle.
  double sum = 1;
  for (int k = is_sine ? 19 : 18; k >= 2; k -= 2) {
    sum = 1 - sum * z / (k * (k - 1));
  }
  const double value = is_sine ? angle * sum : sum;
  // cos(q quarters + angle) is cos, -sin, -cos, sin, cos for q of 0 to 4.
  return nearest == 1 || nearest == 2 ? -value : value;
}

TESSERA_HOST_DEVICE inline double unit_interval(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

TESSERA_HOST_DEVICE inline double standard_normal(uint64_t bits) {
  // Box-Muller; the first half is kept off zero for the logarithm.
  const double u = (static_cast<double>(bits >> 32) + 1.0) * 0x1.0p-32;
  const double v = static_cast<double>(bits & 0xFFFFFFFF) * 0x1.0p-32;
  return std::sqrt(-2.0 * portable_log(u)) * portable_cos_of_turn(v);
}

TESSERA_HOST_DEVICE inline double drawn(const RandomDraw& draw, uint64_t bits) {
  switch (draw.distribution) {
    case Distribution::kUniform:
      return draw.a + (draw.b - draw.a) * unit_interval(bits);
    case Distribution::kNormal:
      return draw.a + draw.b * standard_normal(bits);
    case Distribution::kExponential:
      // 1 - u is exact, and not 0.
      return -portable_log(1 - unit_interval(bits)) / draw.a;
    case Distribution::kBernoulli:
      return unit_interval(bits) < draw.a ? 1.0 : 0.0;
    case Distribution::kInteger:
      return static_cast<double>(
          draw.from + static_cast<int64_t>(bits % draw.range));
  }
  return 0;
}

}  // namespace tessera::detail
