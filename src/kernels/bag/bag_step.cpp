// Gradient descent on the rows of bags. Where sums are kept in the table's own
// dtype no gradient is made at all: a bag's gradient waits in registers while
// its rows go by. Rows that many entries step would be rounded as often: they
// take the sum of their steps at once (hot_rows.h). Half kinds, which would be
// rounded entry by entry, and maxima go through the gradients of rows
// (bag_backward.cpp).
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/bag/bag_kernels_cpu.h"
#include "kernels/bag/bag_lanes.h"
#include "kernels/bag/bag_reader.h"
#include "kernels/bag/bag_runs.h"
#include "kernels/bag/hot_rows.h"

namespace tessera::detail {

namespace {

// The bags of one run.
template <typename T>
struct StepRun {
  BagTable<T> table;
  T* data;  // the table's
  BagRun<T> in;
  const T* grad;
  T rate;
  T* const* places;  // per entry, or nullptr: all in the table

  template <int Bytes>
  TESSERA_LANES_INLINE void run() const;
  // What entry `e` steps: its row, or the row's sum.
  TESSERA_LANES_INLINE T* place_of(int64_t e) const {
    return places != nullptr ? places[e] : data + in.rows[e] * table.stride;
  }
};

// One bag.
template <typename T, int Bytes>
struct StepBag {
  using L = Lanes<T, Bytes>;

  const StepRun<T>& run;
  int64_t begin;
  int64_t end;
  const T* grad;
  T rate;

  template <int N, bool Weighted>
  TESSERA_LANES_INLINE void step(
      int64_t column, const typename L::Vec (&moves)[N]) const {
    const T* table = column_of(run.table.data, column);
    const int64_t* rows = run.in.rows;
    const int64_t stride = run.table.stride;
    const Lookahead ahead = run.table.ahead;
    for (int64_t e = begin; e < end; ++e) {
      const RowAhead<T> next(table, rows, e, stride, ahead);
      T* row = run.place_of(e) + column;
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        typename L::Vec v;
        load_lanes<Bytes>(row + i * L::kCount, v);
        next.ask(i * L::kCount);
        if constexpr (Weighted) {
          v -= moves[i] * run.in.scales[e];
        } else {
          v -= moves[i];
        }
        store_lanes<Bytes, T, T>(row + i * L::kCount, v);
      }
    }
  }

  template <int N>
  TESSERA_LANES_INLINE void block(int64_t column) const {
    typename L::Vec moves[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      load_lanes<Bytes>(grad + column + i * L::kCount, moves[i]);
      moves[i] *= rate;
    }
    if (run.in.scales != nullptr) {
      step<N, true>(column, moves);
    } else {
      step<N, false>(column, moves);
    }
  }

  TESSERA_LANES_INLINE void rest(int64_t column, int64_t count) const {
    for (int64_t e = begin; e < end; ++e) {
      T* row = run.place_of(e) + column;
      const T scale = run.in.scales != nullptr ? run.in.scales[e] : T(1);
      for (int64_t c = 0; c < count; ++c) {
        row[c] -= grad[column + c] * rate * scale;
      }
    }
  }
};

template <typename T>
template <int Bytes>
TESSERA_LANES_INLINE void StepRun<T>::run() const {
  if (in.entries() == 0) {
    return;
  }
  table.prefetch_first(in.rows);
  for (int64_t b = 0; b < in.bags; ++b) {
    const StepBag<T, Bytes> bag{
        *this,
        in.begin_of(b),
        in.ends[b],
        grad + b * table.width,
        rate / static_cast<T>(in.divisor(b))};
    if (bag.begin < bag.end) {
      for_column_blocks<Lanes<T, Bytes>::kCount>(table.width, bag);
    }
  }
}

// Steps the rows from `part.first` on that `weight` holds, bag after bag.
template <typename T>
void step_part(
    const at::Tensor& weight,
    const at::Tensor& grad,
    const BagPart& part,
    const BagIndices& input,
    BagMode mode,
    T rate,
    const HotRows& hot) {
  const int64_t width = weight.size(1);
  const BagReader reader(input, weight.size(0), part);
  HotSums<T> sums(hot, part.first, width);
  T* const data = weight.mutable_data_ptr<T>();
  BagRuns<T>(reader, input, mode)
      .each(0, reader.bags(), [&](const BagRun<T>& run) {
        StepRun<T> step{
            BagTable<T>(weight),
            data,
            run,
            grad.const_data_ptr<T>() + run.begin * width,
            rate,
            nullptr};
        if (hot.any()) {
          sums.find(run, {data, weight.stride(0), rate});
          step.in.scales = sums.scales();
          step.rate = 1;
          step.places = sums.places();
        }
        run_on_lanes(step);
      });
  reader.check_range();
  sums.step({data, weight.stride(0), rate});
}

}  // namespace

void step_rows_cpu(
    const at::Tensor& weight, const BagGradient& bags, double rate) {
  const bool exact =
      weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kDouble;
  if (!exact || bags.mode == BagMode::kMax) {
    step_by_row_gradients(weight, bags, rate);
    return;
  }
  const BagIndices& input = bags.input;
  const at::Tensor dense_grad = bags.grad.contiguous();
  // Each thread takes some of the rows, with all their entries: whatever their
  // number, a row's entries come one after the other.
  const int64_t rows = weight.size(0);
  const int64_t grain = std::max<int64_t>(
      1,
      (1 << 15) * rows /
          std::max<int64_t>(1, input.indices.numel() * weight.size(1)));
  const HotRows hot(input.indices);
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "embedding_bag", [&] {
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      const BagPart some{bags.part.first + begin, bags.part.total};
      step_part<scalar_t>(
          weight.slice(0, begin, end),
          dense_grad,
          some,
          input,
          bags.mode,
          static_cast<scalar_t>(rate),
          hot);
    });
  });
}

}  // namespace tessera::detail
