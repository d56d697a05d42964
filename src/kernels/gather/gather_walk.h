// Walking over the entries of an index beside the tensors that it reads and
// writes.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tessera::detail {

// Entries side by side along the last dimension: the offsets of the first, its
// place in row-major order among all entries, and how many they are.
struct GatherLine {
  int64_t index;
  int64_t a;
  int64_t b;
  int64_t place;
  int64_t length;
};

// A box of index entries beside two tensors, `a` (the part) and `b`, which are
// addressed by the same coordinates; a's stride along `dim` is set apart, since
// there the index says where to go. No dimensions are one of size 1.
struct GatherWalk {
  using Dims = c10::SmallVector<int64_t, 5>;
  // Fewer entries than this are not worth another thread.
  static constexpr int64_t kGrain = 16 * 1024;

  Dims sizes;
  Dims index_strides;
  Dims a_strides;
  Dims b_strides;
  int64_t dim;
  int64_t a_step = 1;

  GatherWalk(
      const at::Tensor& index,
      c10::IntArrayRef a,
      c10::IntArrayRef b,
      int64_t dim)
      : sizes(index.sizes().begin(), index.sizes().end()),
        index_strides(index.strides().begin(), index.strides().end()),
        a_strides(a.begin(), a.end()),
        b_strides(b.begin(), b.end()),
        dim(dim) {
    if (sizes.empty()) {
      sizes.push_back(1);
      for (Dims* strides : {&index_strides, &a_strides, &b_strides}) {
        strides->push_back(1);
      }
    }
    a_step = std::exchange(a_strides[dim], 0);
  }

  int64_t count() const { return c10::multiply_integers(sizes); }

  // The longest dimension to share out between threads, `dim` only if allowed;
  // -1 if there is none.
  int64_t longest(bool allow_dim) const {
    int64_t best = -1;
    for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
      if ((d != dim || allow_dim) && (best < 0 || sizes[d] > sizes[best])) {
        best = d;
      }
    }
    return best;
  }

  // f(line) for each line along the last dimension, in row-major order, cut to
  // coordinates [begin, end) of dimension `cut` (-1: uncut).
  template <class F>
  void for_each_line(int64_t cut, int64_t begin, int64_t end, F&& f) const {
    const auto dims = static_cast<int64_t>(sizes.size());
    Dims low(dims, 0);
    Dims high(sizes);
    if (cut >= 0) {
      low[cut] = begin;
      high[cut] = end;
    }
    Dims at(low);
    const int64_t last = dims - 1;
    for (;;) {
      GatherLine line{0, 0, 0, 0, high[last] - low[last]};
      for (int64_t d = 0; d < dims; ++d) {
        line.index += at[d] * index_strides[d];
        line.a += at[d] * a_strides[d];
        line.b += at[d] * b_strides[d];
        line.place = line.place * sizes[d] + at[d];
      }
      f(line);
      int64_t d = last - 1;
      for (; d >= 0 && ++at[d] == high[d]; --d) {
        at[d] = low[d];
      }
      if (d < 0) {
        return;
      }
    }
  }

  // for_each_line over all entries, on several threads: entries that differ in
  // only `dim` stay on one thread, in order, unless `allow_dim`.
  template <class F>
  void in_parallel(bool allow_dim, F&& f) const {
    if (count() == 0) {
      return;
    }
    const int64_t cut = longest(allow_dim);
    const int64_t length = cut < 0 ? 1 : sizes[cut];
    const int64_t grain = std::max<int64_t>(1, kGrain / (count() / length));
    at::parallel_for(0, length, grain, [&](int64_t begin, int64_t end) {
      for_each_line(cut, begin, end, f);
    });
  }
};

}  // namespace tessera::detail
