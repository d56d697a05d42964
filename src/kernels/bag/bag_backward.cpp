// Gradients of bags on the CPU.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/bag/bag_groups.h"
#include "kernels/bag/bag_kernels_cpu.h"
#include "kernels/bag/bag_lanes.h"
#include "kernels/bag/bag_reader.h"
#include "kernels/lookup/embedding_zeros.h"

namespace tessera::detail {

namespace {

// Some rows' gradients, or the rows after a step against them.
template <typename T, typename Out = T>
struct GradRun {
  using Acc = BagAcc<T>;

  const T* grad;
  int64_t width;
  const int64_t* starts;  // of the rows' entries, and the end of the last
  const int32_t* bags;
  const Acc* scales;      // one for each entry, or nullptr
  const int32_t* places;  // for max: only where an entry won does it get
  const int32_t* argmax;  // anything; else both are nullptr
  const int64_t* rows;    // where each row goes in `out`, or nullptr: in order
  int64_t begin;
  int64_t end;
  Out* out;
  int64_t stride;  // of out, from row to row
  // Given: `out` is a table, and moves against the gradient by this much. Else
  // it gets the gradient.
  std::optional<Acc> rate;

  template <int Bytes>
  TESSERA_LANES_INLINE void run() const;
  TESSERA_LANES_INLINE void prefetch_group(int64_t group) const;
};

enum class GradKind { kPlain, kScaled, kWon };

template <typename T, typename Out, int Bytes>
struct GradRow {
  using Acc = BagAcc<T>;
  using L = Lanes<Acc, Bytes>;

  const GradRun<T, Out>& run;
  int64_t begin;
  int64_t end;
  Out* out;

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
          v *= run.scales[e];
        }
        if constexpr (Kind == GradKind::kWon) {
          typename L::IntVec who;
          load_places<Bytes, Acc>(run.argmax + at + i * L::kCount, who);
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
    if (run.argmax != nullptr) {
      add<N, GradKind::kWon>(column, sums);
    } else if (run.scales != nullptr) {
      add<N, GradKind::kScaled>(column, sums);
    } else {
      add<N, GradKind::kPlain>(column, sums);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      Out* const to = out + column + i * L::kCount;
      if (run.rate.has_value()) {
        typename L::Vec row;
        load_lanes<Bytes>(to, row);
        sums[i] = row - sums[i] * *run.rate;
      }
      store_lanes<Bytes, Out, Acc>(to, sums[i]);
    }
  }

  TESSERA_LANES_INLINE void rest(int64_t column, int64_t count) const {
    for (int64_t c = column; c < column + count; ++c) {
      Acc sum = 0;
      for (int64_t e = begin; e < end; ++e) {
        const int64_t at = run.bags[e] * run.width + c;
        if (run.argmax == nullptr || run.argmax[at] == run.places[e]) {
          const Acc scale = run.scales != nullptr ? run.scales[e] : Acc(1);
          sum += static_cast<Acc>(run.grad[at]) * scale;
        }
      }
      if (run.rate.has_value()) {
        sum = static_cast<Acc>(out[c]) - sum * *run.rate;
      }
      out[c] = static_cast<Out>(sum);
    }
  }
};

// Asks for what a row takes before its turn comes. Rows that are written
// without being read are not asked for.
template <typename T, typename Out>
TESSERA_LANES_INLINE void GradRun<T, Out>::prefetch_group(int64_t group) const {
  const auto ask = [](const auto* from, int64_t count) {
    const auto* c = reinterpret_cast<const char*>(from);
    const auto bytes = count * static_cast<int64_t>(sizeof(*from));
    for (int64_t i = 0; i < bytes; i += 64) {
      __builtin_prefetch(c + i, 0, kFirstCache);
    }
  };
  if (rate.has_value()) {
    ask(out + rows[group] * stride, width);
  }
  // Rows with many entries are few.
  ask(grad + bags[starts[group]] * width, width);
}

template <typename T, typename Out>
template <int Bytes>
TESSERA_LANES_INLINE void GradRun<T, Out>::run() const {
  constexpr int64_t kAhead = 12;
  for (int64_t g = begin; g < end; ++g) {
    if (g + kAhead < end) {
      prefetch_group(g + kAhead);
    }
    Out* row = out + (rows != nullptr ? rows[g] : g) * stride;
    const GradRow<T, Out, Bytes> one{*this, starts[g], starts[g + 1], row};
    for_column_blocks<Lanes<Acc, Bytes>::kCount>(width, one);
  }
}

// What each entry's gradient is multiplied by; empty where it is 1.
template <typename T>
std::vector<BagAcc<T>> entry_scales(
    const RowGroups& groups,
    const BagIndices& input,
    BagMode mode,
    const std::vector<int64_t>& read_counts) {
  using Acc = BagAcc<T>;
  std::vector<Acc> scales;
  if (mode == BagMode::kMean) {
    const int64_t* counts =
        mean_counts(input, static_cast<int64_t>(read_counts.size()));
    counts = counts != nullptr ? counts : read_counts.data();
    std::vector<Acc> shares(read_counts.size());
    for (size_t b = 0; b < shares.size(); ++b) {
      shares[b] = Acc(1) / static_cast<Acc>(std::max<int64_t>(1, counts[b]));
    }
    scales.resize(groups.bags.size());
    for (size_t e = 0; e < scales.size(); ++e) {
      scales[e] = shares[groups.bags[e]];
    }
  } else if (input.per_sample_weights.has_value()) {
    const at::Tensor all = input.per_sample_weights->contiguous();
    const T* weights = all.const_data_ptr<T>();
    scales.resize(groups.places.size());
    for (size_t e = 0; e < scales.size(); ++e) {
      scales[e] = static_cast<Acc>(weights[groups.places[e]]);
    }
  }
  return scales;
}

// What both kinds of backward start from: the entries of a part, row after row,
// and the gradient of their bags.
struct GroupedGradient {
  GroupedGradient(const BagGradient& bags, int64_t rows)
      : input(bags.input),
        mode(bags.mode),
        groups(group_by_row(
            BagReader(bags.input, rows, bags.part), rows, &counts)),
        grad(bags.grad.contiguous()) {
    if (bags.argmax.has_value()) {
      argmax = bags.argmax->contiguous();
    }
  }

  int64_t touched() const { return static_cast<int64_t>(groups.rows.size()); }

  // Fills in what `run` takes from here, and makes all rows that have an entry
  // in the part. Requires: `run` says where they go.
  template <typename T, typename Out>
  void make_rows(GradRun<T, Out> run) const;

  const BagIndices& input;
  BagMode mode;
  std::vector<int64_t> counts;
  RowGroups groups;
  at::Tensor grad;
  at::Tensor argmax;
};

template <typename T, typename Out>
void GroupedGradient::make_rows(GradRun<T, Out> run) const {
  const auto scales = entry_scales<T>(groups, input, mode, counts);
  run.grad = grad.const_data_ptr<T>();
  run.width = grad.size(1);
  run.starts = groups.starts.data();
  run.bags = groups.bags.data();
  run.scales = scales.empty() ? nullptr : scales.data();
  run.places = groups.places.data();
  run.argmax =
      mode == BagMode::kMax ? argmax.const_data_ptr<int32_t>() : nullptr;
  const int64_t grain = std::max<int64_t>(
      1,
      (1 << 15) * touched() /
          std::max<int64_t>(1, groups.starts.back() * run.width));
  at::parallel_for(0, touched(), grain, [&](int64_t begin, int64_t end) {
    auto share = run;
    share.begin = begin;
    share.end = end;
    run_on_lanes(share);
  });
}

}  // namespace

at::Tensor bags_backward_cpu(
    const BagGradient& bags, int64_t rows, bool sparse) {
  const at::Tensor& grad = bags.grad;
  const int64_t width = grad.size(1);
  const GroupedGradient grouped(bags, rows);
  const int64_t touched = grouped.touched();
  at::Tensor out = sparse ? at::empty({touched, width}, grad.options())
                          : lazy_zeros({rows, width}, grad.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad.scalar_type(), "embedding_bag", [&] {
        GradRun<scalar_t> run{};
        run.rows = sparse ? nullptr : grouped.groups.rows.data();
        run.out = out.mutable_data_ptr<scalar_t>();
        run.stride = width;
        grouped.make_rows(run);
      });
  if (!sparse) {
    return out;
  }
  const at::Tensor where =
      at::empty({1, touched}, grad.options().dtype(at::kLong));
  std::copy(
      grouped.groups.rows.begin(),
      grouped.groups.rows.end(),
      where.mutable_data_ptr<int64_t>());
  return at::_sparse_coo_tensor_unsafe(
      where, out, {rows, width}, out.options().layout(at::kSparse), true);
}

void step_by_row_gradients(
    const at::Tensor& weight, const BagGradient& bags, double rate) {
  const GroupedGradient grouped(bags, weight.size(0));
  const auto step = [&]<typename T, typename Out>(GradRun<T, Out> run) {
    run.rows = grouped.groups.rows.data();
    run.out = weight.mutable_data_ptr<Out>();
    run.stride = weight.stride(0);
    run.rate = static_cast<BagAcc<T>>(rate);
    grouped.make_rows(run);
  };
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, weight.scalar_type(), "embedding_bag", [&] {
        if (bags.grad.scalar_type() == weight.scalar_type()) {
          step(GradRun<scalar_t>{});
        } else {
          step(GradRun<BagAcc<scalar_t>, scalar_t>{});
        }
      });
}

}  // namespace tessera::detail
