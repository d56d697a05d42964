#include "kernels/bag_backward.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "kernels/bag_groups.h"
#include "kernels/bag_lanes.h"
#include "kernels/bag_reader.h"
#include "kernels/embedding_zeros.h"

namespace tessera::detail {

namespace {

// Some rows' gradients.
template <typename T>
struct GradRun {
  using Acc = BagAcc<T>;

  const T* grad;
  int64_t width;
  const int64_t* starts;  // of the rows' entries, and the end of the last
  const int32_t* bags;
  const Acc* factors;      // one for each entry, or nullptr
  const int32_t* places;   // for max: only where an entry won does it get
  const int32_t* winners;  // anything; else both are nullptr
  const int64_t* rows;     // where each row goes in `out`, or nullptr: in order
  int64_t begin;
  int64_t end;
  T* out;

  template <int Bytes>
  TESSERA_LANES_INLINE void run() const;
};

enum class GradKind { kPlain, kScaled, kWon };

template <typename T, int Bytes>
struct GradRow {
  using Acc = BagAcc<T>;
  using L = Lanes<Acc, Bytes>;

  const GradRun<T>& run;
  int64_t begin;
  int64_t end;
  T* out;

  template <int N, GradKind Kind>
  TESSERA_LANES_INLINE void add(
      int64_t column, typename L::Vec (&sums)[N]) const {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t at = run.bags[e] * run.width + column;
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        typename L::Vec v;
        load_lanes<Bytes>(run.grad + at + i * L::kCount, v);
        if constexpr (Kind == GradKind::kScaled) {
          v *= run.factors[e];
        }
        if constexpr (Kind == GradKind::kWon) {
          typename L::IntVec who;
          load_places<Bytes, Acc>(run.winners + at + i * L::kCount, who);
          const auto won = who == typename L::IntVec{} + run.places[e];
          v = won ? v : typename L::Vec{};
        }
        sums[i] += v;
      }
    }
  }

  template <int N>
  TESSERA_LANES_INLINE void block(int64_t column) const {
    typename L::Vec sums[N] = {};
    if (run.winners != nullptr) {
      add<N, GradKind::kWon>(column, sums);
    } else if (run.factors != nullptr) {
      add<N, GradKind::kScaled>(column, sums);
    } else {
      add<N, GradKind::kPlain>(column, sums);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      store_lanes<Bytes, T, Acc>(out + column + i * L::kCount, sums[i]);
    }
  }

  TESSERA_LANES_INLINE void rest(int64_t column, int64_t count) const {
    for (int64_t c = column; c < column + count; ++c) {
      Acc sum = 0;
      for (int64_t e = begin; e < end; ++e) {
        const int64_t at = run.bags[e] * run.width + c;
        if (run.winners == nullptr || run.winners[at] == run.places[e]) {
          const Acc factor = run.factors != nullptr ? run.factors[e] : Acc(1);
          sum += static_cast<Acc>(run.grad[at]) * factor;
        }
      }
      out[c] = static_cast<T>(sum);
    }
  }
};

template <typename T>
template <int Bytes>
TESSERA_LANES_INLINE void GradRun<T>::run() const {
  for (int64_t g = begin; g < end; ++g) {
    T* row = out + (rows != nullptr ? rows[g] : g) * width;
    const GradRow<T, Bytes> one{*this, starts[g], starts[g + 1], row};
    for_column_blocks<Lanes<Acc, Bytes>::kCount>(width, one);
  }
}

// What each entry's gradient is multiplied by; empty where it is 1.
template <typename T>
std::vector<BagAcc<T>> entry_factors(
    const RowGroups& groups,
    const BagInput& input,
    BagMode mode,
    const std::vector<int64_t>& read_counts) {
  using Acc = BagAcc<T>;
  std::vector<Acc> factors;
  if (mode == BagMode::kMean) {
    const int64_t* counts =
        mean_counts(input, static_cast<int64_t>(read_counts.size()));
    counts = counts != nullptr ? counts : read_counts.data();
    std::vector<Acc> shares(read_counts.size());
    for (size_t b = 0; b < shares.size(); ++b) {
      shares[b] = Acc(1) / static_cast<Acc>(std::max<int64_t>(1, counts[b]));
    }
    factors.resize(groups.bags.size());
    for (size_t e = 0; e < factors.size(); ++e) {
      factors[e] = shares[groups.bags[e]];
    }
  } else if (input.per_sample_weights.has_value()) {
    const at::Tensor all = input.per_sample_weights->contiguous();
    const T* weights = all.const_data_ptr<T>();
    factors.resize(groups.places.size());
    for (size_t e = 0; e < factors.size(); ++e) {
      factors[e] = static_cast<Acc>(weights[groups.places[e]]);
    }
  }
  return factors;
}

}  // namespace

at::Tensor bags_backward_cpu(
    const at::Tensor& grad,
    int64_t rows,
    const BagPart& part,
    const BagInput& input,
    BagMode mode,
    const std::optional<at::Tensor>& winners,
    bool sparse) {
  const int64_t width = grad.size(1);
  const BagReader reader(input, rows, part);
  std::vector<int64_t> counts;
  const RowGroups groups = group_by_row(reader, rows, &counts);
  const auto touched = static_cast<int64_t>(groups.rows.size());
  const at::Tensor dense_grad = grad.contiguous();
  const at::Tensor dense_winners =
      winners.has_value() ? winners->contiguous() : at::Tensor();
  at::Tensor out = sparse ? at::empty({touched, width}, grad.options())
                          : lazy_zeros({rows, width}, grad.options());
  const int64_t grain = std::max<int64_t>(
      1,
      (1 << 15) * touched / std::max<int64_t>(1, groups.starts.back() * width));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad.scalar_type(), "embedding_bag", [&] {
        const auto factors =
            entry_factors<scalar_t>(groups, input, mode, counts);
        at::parallel_for(0, touched, grain, [&](int64_t begin, int64_t end) {
          run_on_lanes(GradRun<scalar_t>{
              dense_grad.const_data_ptr<scalar_t>(),
              width,
              groups.starts.data(),
              groups.bags.data(),
              factors.empty() ? nullptr : factors.data(),
              groups.places.data(),
              mode == BagMode::kMax ? dense_winners.const_data_ptr<int32_t>()
                                    : nullptr,
              sparse ? nullptr : groups.rows.data(),
              begin,
              end,
              out.mutable_data_ptr<scalar_t>()});
        });
      });
  if (!sparse) {
    return out;
  }
  const at::Tensor where =
      at::empty({1, touched}, grad.options().dtype(at::kLong));
  std::copy(
      groups.rows.begin(),
      groups.rows.end(),
      where.mutable_data_ptr<int64_t>());
  return at::_sparse_coo_tensor_unsafe(
      where, out, {rows, width}, out.options().layout(at::kSparse), true);
}

}  // namespace tessera::detail
