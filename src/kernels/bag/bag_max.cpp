// Maxima of bags on the CPU.
#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <limits>

#include "kernels/bag/bag_kernels_cpu.h"
#include "kernels/bag/bag_lanes.h"
#include "kernels/bag/bag_reader.h"

namespace tessera::detail {

namespace {

// The bags of one run.
template <typename T>
struct MaxRun {
  BagTable<T> table;
  const int64_t* rows;  // Lookahead::kMost more than there are may be read
  const int32_t* places;
  const int64_t* ends;
  const int32_t* firsts;
  int64_t bags;
  T absent;
  T* values;
  int32_t* argmax;

  template <int Bytes>
  TESSERA_LANES_INLINE void run() const;
};

// One bag that has an entry here.
template <typename T, int Bytes>
struct MaxBag {
  using Acc = BagAcc<T>;
  using L = Lanes<Acc, Bytes>;
  static constexpr Acc kLowest = -std::numeric_limits<Acc>::infinity();

  const MaxRun<T>& run;
  int64_t begin;
  int64_t end;
  // Whether `begin` is the first entry of the whole bag. A NaN counts only
  // there. Elsewhere it leaves minus infinity and no argmax: enough, since the
  // first entry, wherever it is, beats that.
  bool leads;
  T* values;
  int32_t* argmax;

  template <int N>
  TESSERA_LANES_INLINE void block(int64_t column) const {
    const T* table = column_of(run.table.data, column);
    const int64_t* rows = run.rows;
    const int64_t stride = run.table.stride;
    const Lookahead ahead = run.table.ahead;
    typename L::Vec best[N];
    typename L::IntVec who[N];
    const T* first = table + rows[begin] * stride;
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      load_lanes<Bytes>(first + i * L::kCount, best[i]);
      who[i] = typename L::IntVec{} + run.places[begin];
      if (!leads) {
        const auto number = best[i] == best[i];
        best[i] = number ? best[i] : typename L::Vec{} + kLowest;
        who[i] = number ? who[i] : typename L::IntVec{} - 1;
      }
    }
    for (int64_t e = begin; e < end; ++e) {
      const RowAhead<T> next(table, rows, e, stride, ahead);
      const T* row = table + rows[e] * stride;
      const auto place = typename L::IntVec{} + run.places[e];
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        typename L::Vec v;
        load_lanes<Bytes>(row + i * L::kCount, v);
        next.ask(i * L::kCount);
        const auto more = v > best[i];
        best[i] = more ? v : best[i];
        who[i] = more ? place : who[i];
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      store_lanes<Bytes, T, Acc>(values + column + i * L::kCount, best[i]);
      for (int64_t k = 0; k < L::kCount; ++k) {
        argmax[column + i * L::kCount + k] = static_cast<int32_t>(who[i][k]);
      }
    }
  }

  TESSERA_LANES_INLINE void rest(int64_t column, int64_t count) const {
    for (int64_t c = column; c < column + count; ++c) {
      Acc best = kLowest;
      int32_t who = -1;
      for (int64_t e = begin; e < end; ++e) {
        const auto v = static_cast<Acc>(
            run.table.data[run.rows[e] * run.table.stride + c]);
        const bool opens = e == begin && (leads || v == v);
        if (v > best || opens) {
          best = v;
          who = run.places[e];
        }
      }
      values[c] = static_cast<T>(best);
      argmax[c] = who;
    }
  }
};

template <typename T>
template <int Bytes>
TESSERA_LANES_INLINE void MaxRun<T>::run() const {
  const int64_t width = table.width;
  if (bags > 0 && ends[bags - 1] > 0) {
    table.prefetch_first(rows);
  }
  int64_t begin = 0;
  for (int64_t b = 0; b < bags; ++b) {
    if (begin == ends[b]) {
      std::fill_n(values + b * width, width, absent);
      std::fill_n(argmax + b * width, width, -1);
      continue;
    }
    const MaxBag<T, Bytes> bag{
        *this,
        begin,
        ends[b],
        places[begin] == firsts[b],
        values + b * width,
        argmax + b * width};
    for_column_blocks<Lanes<BagAcc<T>, Bytes>::kCount>(width, bag);
    begin = ends[b];
  }
}

template <typename T>
void max_bags(
    const at::Tensor& weight,
    const BagReader& reader,
    BagEmpty empty,
    BagMax& out) {
  const int64_t width = weight.size(1);
  reader.parallel_runs(
      width, true, [&](int64_t b, int64_t next, const BagEntries& entries) {
        run_on_lanes(MaxRun<T>{
            BagTable<T>(weight),
            entries.rows,
            entries.places.data(),
            entries.ends.data(),
            entries.firsts.data(),
            next - b,
            empty == BagEmpty::kZero ? T(0)
                                     : -std::numeric_limits<T>::infinity(),
            out.values.mutable_data_ptr<T>() + b * width,
            out.argmax.mutable_data_ptr<int32_t>() + b * width});
      });
}

}  // namespace

BagMax max_bags_cpu(const BagLookup& bags, BagEmpty empty) {
  const at::Tensor& weight = bags.weight;
  const BagReader reader(bags.input, weight.size(0), bags.part);
  BagMax out{
      at::empty({reader.bags(), weight.size(1)}, weight.options()),
      at::empty(
          {reader.bags(), weight.size(1)}, weight.options().dtype(at::kInt))};
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, weight.scalar_type(), "embedding_bag", [&] {
        max_bags<scalar_t>(weight, reader, empty, out);
      });
  reader.check_range();
  return out;
}

}  // namespace tessera::detail
