// Gradient descent on the rows of bags. Where sums are kept in the table's own
// dtype no gradient is made at all: a bag's gradient waits in registers while
// its rows go by. Half kinds, which would be rounded entry by entry, and maxima
// go through the gradients of rows (bag_backward.h).
#include "kernels/bag_step.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/bag_backward.h"
#include "kernels/bag_lanes.h"
#include "kernels/bag_reader.h"

namespace tessera::detail {

namespace {

// The bags of one run.
template <typename T>
struct StepRun {
  BagTable<T> table;
  T* data;              // the table's
  const int64_t* rows;  // Lookahead::kMost more than there are may be read
  const T* factors;     // one for each row, or nullptr
  const int64_t* ends;
  const int64_t* counts;  // what gradients are divided by, or nullptr
  int64_t bags;
  const T* grad;
  T rate;

  template <int Bytes>
  TESSERA_LANES_INLINE void run() const;
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
    constexpr int kBytes = N * L::kCount * sizeof(T);
    T* table = run.data + column;
    const int64_t* rows = run.rows;
    const int64_t stride = run.table.stride;
    const Lookahead ahead = run.table.ahead;
    for (int64_t e = begin; e < end; ++e) {
      prefetch<kSecondCache, kBytes>(table + rows[e + ahead.far] * stride);
      prefetch<kFirstCache, kBytes>(table + rows[e + ahead.near] * stride);
      T* row = table + rows[e] * stride;
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        typename L::Vec v;
        load_lanes<Bytes>(row + i * L::kCount, v);
        if constexpr (Weighted) {
          v -= moves[i] * run.factors[e];
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
    if (run.factors != nullptr) {
      step<N, true>(column, moves);
    } else {
      step<N, false>(column, moves);
    }
  }

  TESSERA_LANES_INLINE void rest(int64_t column, int64_t count) const {
    for (int64_t e = begin; e < end; ++e) {
      T* row = run.data + run.rows[e] * run.table.stride + column;
      const T factor = run.factors != nullptr ? run.factors[e] : T(1);
      for (int64_t c = 0; c < count; ++c) {
        row[c] -= grad[column + c] * rate * factor;
      }
    }
  }
};

template <typename T>
template <int Bytes>
TESSERA_LANES_INLINE void StepRun<T>::run() const {
  const int64_t width = table.width;
  if (bags > 0 && ends[bags - 1] > 0) {
    table.prefetch_first(rows);
  }
  int64_t begin = 0;
  for (int64_t b = 0; b < bags; ++b) {
    const int64_t count = counts != nullptr && counts[b] > 0 ? counts[b] : 1;
    const StepBag<T, Bytes> bag{
        *this, begin, ends[b], grad + b * width, rate / static_cast<T>(count)};
    if (begin < ends[b]) {
      for_column_blocks<Lanes<T, Bytes>::kCount>(width, bag);
    }
    begin = ends[b];
  }
}

// Steps the rows from `part.first` on that `weight` holds, bag after bag.
template <typename T>
void step_part(
    const at::Tensor& weight,
    const at::Tensor& grad,
    const BagReader& reader,
    const BagInput& input,
    BagMode mode,
    T rate) {
  const int64_t width = weight.size(1);
  const int64_t* own_counts = mean_counts(input, reader.bags());
  BagEntries entries;
  std::vector<T> entry_factors;
  for (int64_t b = 0, next = 0; b < reader.bags(); b = next) {
    next = reader.run_end(b, reader.bags());
    reader.read(b, next, input.per_sample_weights.has_value(), entries);
    entry_factors.clear();
    if (input.per_sample_weights.has_value()) {
      const T* all = input.per_sample_weights->const_data_ptr<T>();
      for (int64_t e = 0; e < entries.held; ++e) {
        entry_factors.push_back(all[entries.places[e]]);
      }
    }
    const int64_t* counts = nullptr;
    if (mode == BagMode::kMean) {
      counts = own_counts != nullptr ? own_counts + b : entries.counts.data();
    }
    run_on_lanes(StepRun<T>{
        BagTable<T>(weight),
        weight.mutable_data_ptr<T>(),
        entries.rows.data(),
        input.per_sample_weights.has_value() ? entry_factors.data() : nullptr,
        entries.ends.data(),
        counts,
        next - b,
        grad.const_data_ptr<T>() + b * width,
        rate});
  }
  reader.check_range();
}

}  // namespace

void step_rows_cpu(
    const at::Tensor& weight,
    const at::Tensor& grad,
    const BagPart& part,
    const BagInput& input,
    BagMode mode,
    const std::optional<at::Tensor>& winners,
    double rate) {
  const bool exact =
      weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kDouble;
  if (!exact || mode == BagMode::kMax) {
    step_by_row_gradients(weight, grad, part, input, mode, winners, rate);
    return;
  }
  BagInput ordered = input;
  if (input.per_sample_weights.has_value()) {
    ordered.per_sample_weights = input.per_sample_weights->contiguous();
  }
  const at::Tensor dense_grad = grad.contiguous();
  // Each thread takes some of the rows, with all their entries: whatever their
  // number, a row's entries come one after the other.
  const int64_t rows = weight.size(0);
  const int64_t grain = std::max<int64_t>(
      1,
      (1 << 15) * rows /
          std::max<int64_t>(1, input.indices.numel() * weight.size(1)));
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "embedding_bag", [&] {
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      const BagPart some{part.first + begin, part.total};
      step_part<scalar_t>(
          weight.slice(0, begin, end),
          dense_grad,
          BagReader(ordered, end - begin, some),
          ordered,
          mode,
          static_cast<scalar_t>(rate));
    });
  });
}

}  // namespace tessera::detail
