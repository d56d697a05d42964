// What becomes of the sums of a row's entries: see runs.cuh.
#pragma once

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/row_gradient.h"
#include "kernels/cuda/row_update.h"
#include "kernels/cuda/runs.cuh"

namespace tessera::detail::cuda {

// Writes the gradient of each row.
template <typename T>
struct GradientSink {
  T* out;
  int64_t width;
  const uint32_t* numbers;  // or nullptr: rows stand where the table has them
  bool mean_of_entries;

  __device__ void prefetch(uint32_t /*row*/, int /*column*/) const {}

  template <int kStep, typename S>
  __device__ void store(
      uint32_t row,
      uint32_t entry,
      uint32_t count,
      int column,
      S (&sums)[kStep]) const {
    if (mean_of_entries) {
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        sums[k] /= static_cast<S>(count);
      }
    }
    const int64_t place = numbers == nullptr ? row : numbers[entry] - 1;
    cuda::store<kStep>(out + place * width + column, sums);
  }
};

// Plain gradient descent. Another optimizer is another struct with this one
// function: its state is reached by row and column as the table is.
template <typename W>
struct SgdUpdate {
  Sum<W> rate;

  template <int kStep>
  __device__ void apply(
      int64_t /*row*/,
      int /*column*/,
      const Sum<W> (&gradient)[kStep],
      Sum<W> (&weight)[kStep]) const {
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      weight[k] -= rate * gradient[k];
    }
  }
};

// Updates each row of the table in place, rounding once.
template <typename W, class Update>
struct UpdateSink {
  W* table;
  int64_t stride;
  Update update;

  __device__ void prefetch(uint32_t row, int column) const {
    asm volatile(
        "prefetch.global.L2 [%0];" ::"l"(table + row * stride + column));
  }

  template <int kStep, typename S>
  __device__ void store(
      uint32_t row,
      uint32_t /*entry*/,
      uint32_t /*count*/,
      int column,
      S (&sums)[kStep]) const {
    W* const at = table + row * stride + column;
    S weight[kStep];
    load<kStep>(at, weight);
    update.apply(row, column, sums, weight);
    cuda::store<kStep>(at, weight);
  }
};

// Adds up what `source` gives for each row and hands it to `sink`, in steps of
// 16 bytes of T where `words`, else column by column.
template <typename T, class Source, class Sink>
cudaError_t sum_rows(
    bool words,
    const SortedRun& run,
    int64_t width,
    const Source& source,
    const Sink& sink) {
  const auto& [sorted, scratch, stream] = run;
  return words ? run_sums<16 / sizeof(T), Sum<T>>(
                     sorted, width, source, sink, scratch, stream)
               : run_sums<1, Sum<T>>(
                     sorted, width, source, sink, scratch, stream);
}

// The gradient of the rows, of what `source` makes of `grad`.
template <typename T, class Source>
cudaError_t write_gradient(
    const SortedRun& run,
    const RowTerms& grad,
    const Source& source,
    const GradientOut& out) {
  const int64_t width = grad.width;
  const bool words = allows_words<T>(grad.grad, width, width) &&
                     allows_words<T>(out.data, width, width);
  const GradientSink<T> sink{
      static_cast<T*>(out.data), width, out.numbers, out.mean_of_entries};
  return sum_rows<T>(words, run, width, source, sink);
}

}  // namespace tessera::detail::cuda
