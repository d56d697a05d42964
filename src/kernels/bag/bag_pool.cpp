// Sums and means of bags on the CPU.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "kernels/bag/bag_kernels_cpu.h"
#include "kernels/bag/bag_lanes.h"
#include "kernels/bag/bag_reader.h"
#include "kernels/bag/bag_runs.h"

namespace tessera::detail {

namespace {

// What is done with the rows of a bag besides adding them up.
enum class Pooling { kSum, kWeighted, kMean };

// The bags of one run.
template <typename T, typename Out>
struct PoolRun {
  using Acc = BagAcc<T>;

  BagTable<T> table;
  BagRun<T> in;
  Out* out;
  bool* outside;  // set if there is a row that the table does not have

  template <int Bytes>
  TESSERA_LANES_INLINE void run() const;
  template <int Bytes, Pooling kPooling>
  TESSERA_LANES_INLINE void run_as() const;
};

// One bag. All that the loops read is a copy: bags are short, and what they
// would look up behind pointers costs as much as some rows.
template <typename T, typename Out, int Bytes, Pooling kPooling>
struct PoolBag {
  using Acc = BagAcc<T>;
  using L = Lanes<Acc, Bytes>;

  BagTable<T> table;
  const int64_t* rows;
  const Acc* scales;
  int64_t begin;
  int64_t end;
  Acc divisor;
  Out* out;
  bool* outside;

  template <int N>
  TESSERA_LANES_INLINE void block(int64_t column) const {
    typename L::Vec sums[N] = {};
    const T* first = column_of(table.data, column);
    for (int64_t e = begin; e < end; ++e) {
      const RowAhead<T> next(first, rows, e, table.stride, table.ahead);
      if (!table.has(rows[e])) [[unlikely]] {
        *outside = true;
        return;
      }
      const T* row = first + rows[e] * table.stride;
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        typename L::Vec v;
        load_lanes<Bytes>(row + i * L::kCount, v);
        if constexpr (kPooling == Pooling::kWeighted) {
          v *= scales[e];
        }
        sums[i] += v;
        next.ask(i * L::kCount);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      if constexpr (kPooling == Pooling::kMean) {
        sums[i] /= divisor;
      }
      store_lanes<Bytes, Out, Acc>(out + column + i * L::kCount, sums[i]);
    }
  }

  TESSERA_LANES_INLINE void rest(int64_t column, int64_t count) const {
    Acc sums[L::kCount] = {};
    for (int64_t e = begin; e < end; ++e) {
      if (!table.has(rows[e])) [[unlikely]] {
        *outside = true;
        return;
      }
      const T* row = table.data + rows[e] * table.stride + column;
      const Acc scale = kPooling == Pooling::kWeighted ? scales[e] : Acc(1);
      for (int64_t c = 0; c < count; ++c) {
        sums[c] += static_cast<Acc>(row[c]) * scale;
      }
    }
    for (int64_t c = 0; c < count; ++c) {
      out[column + c] = static_cast<Out>(
          kPooling == Pooling::kMean ? sums[c] / divisor : sums[c]);
    }
  }
};

template <typename T, typename Out>
template <int Bytes, Pooling kPooling>
TESSERA_LANES_INLINE void PoolRun<T, Out>::run_as() const {
  PoolBag<T, Out, Bytes, kPooling> bag{
      table, in.rows, in.scales, 0, 0, Acc(1), out, outside};
  for (int64_t b = 0; b < in.bags; ++b) {
    bag.begin = bag.end;
    bag.end = in.ends[b];
    if constexpr (kPooling == Pooling::kMean) {
      bag.divisor = static_cast<Acc>(in.divisor(b));
    }
    for_column_blocks<Lanes<Acc, Bytes>::kCount>(bag.table.width, bag);
    bag.out += bag.table.width;
  }
}

template <typename T, typename Out>
template <int Bytes>
TESSERA_LANES_INLINE void PoolRun<T, Out>::run() const {
  if (in.entries() > 0) {
    table.prefetch_first(in.rows);
  }
  if (in.scales != nullptr) {
    run_as<Bytes, Pooling::kWeighted>();
  } else if (in.counts != nullptr) {
    run_as<Bytes, Pooling::kMean>();
  } else {
    run_as<Bytes, Pooling::kSum>();
  }
}

template <typename T, typename Out>
void pool_bags(
    const at::Tensor& weight,
    const BagReader& reader,
    const BagIndices& input,
    BagMode mode,
    at::Tensor& out) {
  const int64_t width = weight.size(1);
  const BagRuns<T> runs(reader, input, mode);
  at::parallel_for(
      0, reader.bags(), reader.grain(width), [&](int64_t begin, int64_t end) {
        bool outside = false;
        runs.each(begin, end, [&](const BagRun<T>& run) {
          run_on_lanes(PoolRun<T, Out>{
              BagTable<T>(weight),
              run,
              out.mutable_data_ptr<Out>() + run.begin * width,
              &outside});
        });
        if (outside) reader.found_outside();
      });
}

}  // namespace

at::Tensor pool_bags_cpu(
    const BagLookup& bags, BagMode mode, at::ScalarType result) {
  // No structured binding: lambdas capture these.
  const at::Tensor& weight = bags.weight;
  const BagIndices& input = bags.input;
  // Rows without columns are not followed.
  const BagReader reader(
      input,
      weight.size(0),
      bags.part,
      weight.size(1) > 0 ? BagReader::Checks::kByFollower
                         : BagReader::Checks::kHere);
  at::Tensor out = at::empty(
      {reader.bags(), weight.size(1)}, weight.options().dtype(result));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, weight.scalar_type(), "embedding_bag", [&] {
        // For float and double both are the same.
        // NOLINTNEXTLINE(bugprone-branch-clone)
        if (result == weight.scalar_type()) {
          pool_bags<scalar_t, scalar_t>(weight, reader, input, mode, out);
        } else {
          pool_bags<scalar_t, BagAcc<scalar_t>>(
              weight, reader, input, mode, out);
        }
      });
  reader.check_range();
  return out;
}

}  // namespace tessera::detail
