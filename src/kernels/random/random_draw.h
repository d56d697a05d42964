// Random numbers of every kind, each from the random bits of its element.
// Only additions, multiplications, divisions and square roots of doubles, each
// rounded by itself: every compiler and device gives the same bits, which no
// library's logarithm and cosine promise. (Compile without contraction to
// fused multiply-adds.)
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/random/philox.h"

namespace tessera::detail {

enum class Distribution : int32_t {
  kUniform,      // [a, b)
  kNormal,       // mean a, standard deviation b
  kExponential,  // of rate a
  kBernoulli,    // 1 with probability a, else 0
  kInteger,      // from + a number below `range`; of all of int64 if that is 0
};

struct RandomDraw {
  Distribution distribution = Distribution::kUniform;
  double a = 0;
  double b = 1;
  int64_t from = 0;
  uint64_t range = 0;
  // What the dtype asks for: so many bits of a uniform number, and nothing
  // beyond these. Both are numbers of the dtype, so that what lies between them
  // is still there once it is rounded.
  int digits = 53;
  double least = -HUGE_VAL;
  double greatest = HUGE_VAL;
};

// Which numbers: those of one random op.
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

// Twice as many. An op takes these or random_bits, not both.
struct RandomPair {
  uint64_t high;
  uint64_t low;
};
TESSERA_HOST_DEVICE inline RandomPair random_pair(
    RandomStream stream, uint64_t index) {
  const PhiloxWords words = philox(stream.seed, index, stream.op);
  return {
      uint64_t{words.at[0]} << 32 | words.at[1],
      uint64_t{words.at[2]} << 32 | words.at[3]};
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

// On [0, 1), with so many random bits.
TESSERA_HOST_DEVICE inline double unit_interval(
    uint64_t bits, int digits = 53) {
  const double step = 1.0 / static_cast<double>(uint64_t{1} << digits);
  return static_cast<double>(bits >> (64 - digits)) * step;
}

TESSERA_HOST_DEVICE inline double standard_normal(RandomPair bits) {
  // Box-Muller; 1 - u is exact, and not 0, for the logarithm.
  const double u = 1 - unit_interval(bits.high);
  return std::sqrt(-2.0 * portable_log(u)) *
         portable_cos_of_turn(unit_interval(bits.low));
}

// The upper 64 bits of a product.
TESSERA_HOST_DEVICE inline uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xFFFFFFFF;
  const uint64_t b_low = b & 0xFFFFFFFF;
  const uint64_t middle = (a >> 32) * b_low + (a_low * b_low >> 32);
  const uint64_t other = a_low * (b >> 32) + (middle & 0xFFFFFFFF);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

// A kInteger, exactly. 128 bits times the range: with 64, some numbers of a
// great range would come up more often than others.
TESSERA_HOST_DEVICE inline int64_t drawn_integer(
    const RandomDraw& draw, RandomStream stream, uint64_t index) {
  const RandomPair bits = random_pair(stream, index);
  if (draw.range == 0) {
    return static_cast<int64_t>(bits.high);
  }
  const uint64_t carried = multiply_high(bits.low, draw.range);
  const uint64_t product = bits.high * draw.range;
  const uint64_t below = multiply_high(bits.high, draw.range) +
                         (product + carried < product ? 1 : 0);
  return static_cast<int64_t>(static_cast<uint64_t>(draw.from) + below);
}

// Any of them, to be rounded to the dtype.
TESSERA_HOST_DEVICE inline double drawn(
    const RandomDraw& draw, RandomStream stream, uint64_t index) {
  double value = 0;
  switch (draw.distribution) {
    case Distribution::kUniform:
      value =
          draw.a + (draw.b - draw.a) *
                       unit_interval(random_bits(stream, index), draw.digits);
      break;
    case Distribution::kNormal:
      value = draw.a + draw.b * standard_normal(random_pair(stream, index));
      break;
    case Distribution::kExponential:
      value =
          -portable_log(1 - unit_interval(random_bits(stream, index))) / draw.a;
      break;
    case Distribution::kBernoulli:
      value = unit_interval(random_bits(stream, index)) < draw.a ? 1 : 0;
      break;
    case Distribution::kInteger:
      value = static_cast<double>(drawn_integer(draw, stream, index));
      break;
  }
  return value < draw.least      ? draw.least
         : value > draw.greatest ? draw.greatest
                                 : value;
}

}  // namespace tessera::detail
