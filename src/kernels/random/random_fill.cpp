#include "kernels/random/random_fill.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tessera::detail {

namespace {

// Calls visit(local index, global index) for each element of the region, both
// counted row-major.
template <typename Visit>
void for_each_element(const RandomRegion& region, const Visit& visit) {
  const auto dims = static_cast<int64_t>(region.size());
  int64_t count = 1;
  for (const auto& extent : region) {
    count *= extent.size;
  }
  if (count == 0) {
    return;
  }
  const RandomExtent last =
      dims == 0 ? RandomExtent{0, 1, 1} : region[dims - 1];
  at::parallel_for(
      0,
      count / last.size,
      std::max<int64_t>(1, 4096 / last.size),
      [&](auto from, auto to) {
        for (int64_t r = from; r < to; ++r) {
          int64_t global = last.begin;
          int64_t rest = r;
          int64_t scale = last.whole;
          for (int64_t d = dims - 2; d >= 0; --d) {
            global += (region[d].begin + rest % region[d].size) * scale;
            rest /= region[d].size;
            scale *= region[d].whole;
          }
          for (int64_t i = 0; i < last.size; ++i) {
            visit(r * last.size + i, global + i);
          }
        }
      });
}

// The next number of T above or below a finite one.
template <typename T>
double neighbour(T value, bool up) {
  if constexpr (sizeof(T) == 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFF) == 0) {
      bits = up ? 0x0001 : 0x8001;
    } else {
      bits = up == (bits < 0x8000) ? bits + 1 : bits - 1;
    }
    std::memcpy(&value, &bits, sizeof bits);
    return static_cast<double>(value);
  } else {
    const T end = std::numeric_limits<T>::infinity();
    return static_cast<double>(std::nextafter(value, up ? end : -end));
  }
}

// Bounds the numbers to those of T in [from, to); to the first where there is
// none.
template <typename T>
void keep_within(RandomDraw& draw, double from, double to) {
  const auto first = static_cast<T>(from);
  const auto end = static_cast<T>(to);
  draw.least = static_cast<double>(first) < from ? neighbour(first, /*up=*/true)
                                                 : static_cast<double>(first);
  draw.greatest = static_cast<double>(end) < to ? static_cast<double>(end)
                                                : neighbour(end, /*up=*/false);
  draw.greatest = std::max(draw.least, draw.greatest);
}

// The draw for numbers of floating-point type T.
template <typename T>
RandomDraw for_type(RandomDraw draw) {
  switch (draw.distribution) {
    case Distribution::kUniform:
      // Bounds, too, are numbers of the dtype.
      draw.a = static_cast<double>(static_cast<T>(draw.a));
      draw.b = static_cast<double>(static_cast<T>(draw.b));
      draw.digits = std::numeric_limits<T>::digits;
      keep_within<T>(draw, draw.a, draw.b);
      break;
    case Distribution::kExponential:
      // Never 0.
      draw.least = static_cast<double>(std::numeric_limits<T>::denorm_min());
      break;
    case Distribution::kInteger: {
      const auto from = static_cast<double>(draw.from);
      keep_within<T>(
          draw,
          from,
          draw.range == 0 ? 0x1.0p63 : from + static_cast<double>(draw.range));
      break;
    }
    case Distribution::kNormal:
    case Distribution::kBernoulli:
      break;
  }
  return draw;
}

RandomDraw for_dtype(const RandomDraw& draw, at::ScalarType dtype) {
  RandomDraw result = draw;
  if (c10::isFloatingType(dtype)) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, dtype, "fill_random_", [&] {
          result = for_type<scalar_t>(draw);
        });
  }
  return result;
}

// Integers that doubles do not hold.
bool is_wide(const RandomDraw& draw, at::ScalarType dtype) {
  constexpr int64_t kExact = int64_t{1} << 53;
  return draw.distribution == Distribution::kInteger &&
         c10::isIntegralType(dtype, /*includeBool=*/true) &&
         (draw.range == 0 || draw.range > static_cast<uint64_t>(kExact) ||
          draw.from < -kExact ||
          draw.from > kExact - static_cast<int64_t>(draw.range));
}

template <typename T, typename Number>
void fill_on_cpu(
    const at::Tensor& shard, const RandomRegion& region, const Number& number) {
  const at::Tensor values = at::empty(
      shard.sizes(),
      at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  auto* const out = values.mutable_data_ptr<T>();
  for_each_element(region, [&](int64_t local, int64_t global) {
    out[local] = number(static_cast<uint64_t>(global));
  });
  shard.copy_(values);
}

}  // namespace

void fill_random_(
    const at::Tensor& shard,
    const RandomDraw& asked,
    RandomStream stream,
    const RandomRegion& region) {
  const RandomDraw draw = for_dtype(asked, shard.scalar_type());
  if (is_wide(draw, shard.scalar_type())) {
    fill_on_cpu<int64_t>(shard, region, [&](uint64_t index) {
      return drawn_integer(draw, stream, index);
    });
    return;
  }
  const auto fill = shard.is_cuda() ? fill_random_cuda() : fill_random_on_host;
  fill(shard, draw, stream, region);
}

void fill_random_on_host(
    const at::Tensor& shard,
    const RandomDraw& draw,
    RandomStream stream,
    const RandomRegion& region) {
  fill_on_cpu<double>(shard, region, [&](uint64_t index) {
    return drawn(draw, stream, index);
  });
}

}  // namespace tessera::detail
