#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/lookup/embedding_index.h"
#include "kernels/lookup/embedding_sorted.h"
#include "kernels/lookup/embedding_zeros.h"
#include "kernels/lookup/lookup_kernels_cpu.h"

namespace tessera::detail {
namespace {

using Range = SortedRows::Range;

// Fewer items than this are not worth another thread.
constexpr int64_t kGrainItems = 16 * 1024;

// A gradient as rows of items; strides in items. An expanded one (of a sum) has
// strides of 0 and is never copied.
template <class T>
struct GradRows {
  const T* data;
  int64_t columns;
  int64_t row_stride;
  int64_t column_stride;

  explicit GradRows(const at::Tensor& grad)
      : data(grad.const_data_ptr<T>()),
        columns(grad.size(1)),
        row_stride(grad.stride(0)),
        column_stride(grad.stride(1)) {}

  // f(column, item) for each item of `row`. The common stride is a loop of its
  // own, which the compiler vectorises.
  template <class F>
  void for_each(int64_t row, F&& f) const {
    const T* item = data + row * row_stride;
    if (column_stride == 1) {
      for (int64_t column = 0; column < columns; ++column) {
        f(column, item[column]);
      }
    } else {
      for (int64_t column = 0; column < columns; ++column) {
        f(column, item[column * column_stride]);
      }
    }
  }
};

// Adds the terms of rows [begin, end) of the part, in the order of the indices.
// Reports the first bad index, wherever it points.
template <class T, class Index>
void add_rows(
    const GradRows<T>& grad,
    const Index* indices,
    int64_t n,
    const Range& range,
    int64_t begin,
    int64_t end,
    T* out,
    FirstPlace& bad) {
  const int64_t first = range.first_row + begin;
  const int64_t rows = end - begin;
  out += begin * grad.columns;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kPrefetchRows < n) {
      const int64_t next = offset_from(first, indices[i + kPrefetchRows]);
      if (is_inside(next, rows)) {
        __builtin_prefetch(out + next * grad.columns, 1);
      }
    }
    const int64_t row = offset_from(first, indices[i]);
    if (!is_inside(row, rows)) {
      if (!is_inside(indices[i], range.table_rows)) {
        bad.report(i);
        return;
      }
    } else if (indices[i] != range.skip) {
      T* sum = out + row * grad.columns;
      grad.for_each(i, [&](int64_t column, T item) { sum[column] += item; });
    }
  }
}

// Where the run of each row begins in `sorted`, and the end of the last.
std::vector<int64_t> find_runs(const SortedRows& sorted) {
  std::vector<int64_t> runs;
  runs.reserve(sorted.size() + 1);
  for (int64_t i = 0, last = -1; i < sorted.size(); ++i) {
    if (const int64_t row = sorted.row(i); row != last) {
      runs.push_back(i);
      last = row;
    }
  }
  runs.push_back(sorted.size());
  return runs;
}

// Writes the sum of each run to place_of(run), a row of `out`. Sums are made in
// the type that ATen computes in, and rounded once.
template <class T, class PlaceOf>
void sum_runs(
    const GradRows<T>& grad,
    const SortedRows& sorted,
    const std::vector<int64_t>& runs,
    bool scaled,
    T* out,
    const PlaceOf& place_of) {
  using Sum = at::opmath_type<T>;
  const int64_t columns = grad.columns;
  const int64_t count = static_cast<int64_t>(runs.size()) - 1;
  const int64_t grain = std::max<int64_t>(1, kGrainItems / (columns + 1));
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    std::vector<Sum> sums(columns);
    Sum* const sum = sums.data();
    for (int64_t run = begin; run < end; ++run) {
      const int64_t terms = runs[run + 1] - runs[run];
      T* const to = out + place_of(run) * columns;
      if (terms == 1) {
        grad.for_each(sorted.position(runs[run]), [&](int64_t column, T item) {
          to[column] = item;
        });
        continue;
      }
      const auto scale = static_cast<Sum>(scaled ? 1.0 / terms : 1.0);
      std::fill(sums.begin(), sums.end(), Sum(0));
      for (int64_t i = runs[run]; i < runs[run + 1]; ++i) {
        grad.for_each(sorted.position(i), [&](int64_t column, T item) {
          sum[column] += static_cast<Sum>(item) * scale;
        });
      }
      for (int64_t column = 0; column < columns; ++column) {
        to[column] = static_cast<T>(sum[column]);
      }
    }
  });
}

// `grad` as [indices, columns], without a copy where strides allow.
at::Tensor as_rows(const at::Tensor& grad, const at::Tensor& indices) {
  return grad.reshape({indices.numel(), grad.size(-1)});
}

Range range_of(const HeldRows& held, int64_t padding_idx) {
  return {held.first_row, held.rows, held.table_rows, padding_idx};
}

at::Tensor lookup_backward_cpu(
    const at::Tensor& grad,
    const HeldRows& held,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  const at::Tensor& indices = held.indices;
  const int64_t rows = held.rows;
  const Range range = range_of(held, padding_idx);
  const int64_t n = indices.numel();
  const at::Tensor grad_rows = as_rows(grad, indices);
  const at::Tensor ordered = indices.contiguous();
  at::Tensor out = lazy_zeros({rows, grad.size(-1)}, grad.options());
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND3(
      at::kHalf,
      at::kBFloat16,
      at::kComplexHalf,
      grad.scalar_type(),
      "lookup_rows_backward",
      [&] {
        const GradRows<scalar_t> source(grad_rows);
        auto* const data = out.mutable_data_ptr<scalar_t>();
        with_index_data(ordered, [&](const auto* index) {
          // Adding term after term to the result would round each time in the
          // half kinds; and only sorted terms are counted.
          if (!std::is_same_v<scalar_t, at::opmath_type<scalar_t>> ||
              scale_grad_by_freq) {
            const SortedRows sorted(index, n, range);
            const std::vector<int64_t> runs = find_runs(sorted);
            sum_runs(
                source,
                sorted,
                runs,
                scale_grad_by_freq,
                data,
                [&](int64_t run) { return sorted.row(runs[run]); });
            return;
          }
          FirstPlace bad;
          // Each thread reads all indices and adds to rows of its own. Without
          // rows here indices are checked still.
          const int64_t parts = std::max<int64_t>(rows, 1);
          const int64_t threads =
              std::max<int64_t>(1, n * source.columns / kGrainItems);
          at::parallel_for(
              0,
              parts,
              (parts + threads - 1) / threads,
              [&](int64_t begin, int64_t end) {
                add_rows(
                    source,
                    index,
                    n,
                    range,
                    begin,
                    std::min(end, rows),
                    data,
                    bad);
              });
          if (bad) {
            throw_outside_table(index[bad.get()], held.table_rows);
          }
        });
      });
  return out;
}

at::Tensor lookup_sparse_backward_cpu(
    const at::Tensor& grad, const HeldRows& held, int64_t padding_idx) {
  const at::Tensor& indices = held.indices;
  const Range range = range_of(held, padding_idx);
  const int64_t columns = grad.size(-1);
  const at::Tensor grad_rows = as_rows(grad, indices);
  const at::Tensor ordered = indices.contiguous();
  const SortedRows sorted = with_index_data(ordered, [&](const auto* index) {
    return SortedRows(index, indices.numel(), range);
  });
  const std::vector<int64_t> runs = find_runs(sorted);
  const int64_t count = static_cast<int64_t>(runs.size()) - 1;

  at::Tensor touched = at::empty({1, count}, at::kLong);
  auto* const touched_data = touched.mutable_data_ptr<int64_t>();
  for (int64_t run = 0; run < count; ++run) {
    touched_data[run] = sorted.row(runs[run]);
  }
  at::Tensor values = at::empty({count, columns}, grad.options());
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND3(
      at::kHalf,
      at::kBFloat16,
      at::kComplexHalf,
      grad.scalar_type(),
      "lookup_rows_sparse_backward",
      [&] {
        sum_runs(
            GradRows<scalar_t>(grad_rows),
            sorted,
            runs,
            /*scaled=*/false,
            values.mutable_data_ptr<scalar_t>(),
            [](int64_t run) { return run; });
      });
  return at::_sparse_coo_tensor_unsafe(
      touched,
      values,
      {held.rows, columns},
      grad.options().layout(at::kSparse),
      /*is_coalesced=*/true);
}

}  // namespace

const LookupKernels& LookupKernels::cpu() {
  static constexpr LookupKernels kernels{
      lookup_forward_cpu,
      lookup_backward_cpu,
      lookup_sparse_backward_cpu,
      route_rows_cpu,
      /*begin_route=*/nullptr,
      renorm_rows_composed};
  return kernels;
}

}  // namespace tessera::detail
