// Tables cut into parts, and the two implementations that every test of the
// kernels runs on.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "kernels/lookup/embedding.h"
#include "kernels/lookup/lookup_kernels.h"
#include "on_gpu.h"

namespace tessera::detail {

// The message of the Error that `call` must throw; fails the test otherwise.
template <class Error, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what_without_backtrace();
    // A GPU's says more.
    return message.substr(0, message.find(" (It was found on a GPU"));
  }
  ADD_FAILURE() << "expected an exception";
  return {};
}

// Runs the test's ops on `threads` threads while it lives.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

struct EmbeddingKernels {
  const char* name;
  decltype(&lookup_rows) lookup;
  decltype(&lookup_rows_backward) backward;
  decltype(&lookup_rows_sparse_backward) sparse_backward;
};

inline std::ostream& operator<<(
    std::ostream& out, const EmbeddingKernels& kernels) {
  return out << kernels.name;
}

inline at::Tensor lookup_rows_on_gpu(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t table_rows) {
  return from_gpu(
      lookup_rows(to_gpu(weight), to_gpu(indices), first_row, table_rows));
}

inline at::Tensor lookup_rows_backward_on_gpu(
    const at::Tensor& grad,
    const HeldRows& held,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  return from_gpu(lookup_rows_backward(
      to_gpu(grad),
      {to_gpu(held.indices), held.first_row, held.rows, held.table_rows},
      padding_idx,
      scale_grad_by_freq));
}

inline at::Tensor lookup_rows_sparse_backward_on_gpu(
    const at::Tensor& grad, const HeldRows& held, int64_t padding_idx) {
  return from_gpu(lookup_rows_sparse_backward(
      to_gpu(grad),
      {to_gpu(held.indices), held.first_row, held.rows, held.table_rows},
      padding_idx));
}

// The kernels of the CPU, the compositions of other devices on the CPU and, if
// there is one, the kernels of a GPU.
inline std::vector<EmbeddingKernels> embedding_kernels() {
  std::vector<EmbeddingKernels> all{
      {"cpu", lookup_rows, lookup_rows_backward, lookup_rows_sparse_backward},
      {"composed",
       [](const at::Tensor& weight,
          const at::Tensor& indices,
          int64_t first,
          int64_t all_rows) {
         return LookupKernels::composed().forward(
             weight, {indices, first, weight.size(0), all_rows});
       },
       LookupKernels::composed().backward,
       LookupKernels::composed().sparse_backward}};
  if (has_gpu()) {
    all.push_back(
        {"gpu",
         lookup_rows_on_gpu,
         lookup_rows_backward_on_gpu,
         lookup_rows_sparse_backward_on_gpu});
  }
  return all;
}

// [bounds[c], bounds[c + 1]) of `rows` rows for `parts` owners, like
// torch.chunk: uneven, and empty for the last owners of short tables.
inline std::vector<int64_t> chunk_bounds(int64_t rows, int64_t parts) {
  const int64_t chunk = (rows + parts - 1) / parts;
  std::vector<int64_t> bounds;
  for (int64_t c = 0; c <= parts; ++c) {
    bounds.push_back(std::min(rows, c * chunk));
  }
  return bounds;
}

// A tensor of whole numbers from -8 to 8, whose sums are exact in every dtype.
inline at::Tensor whole_numbers(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randint(-8, 9, sizes, at::kLong).to(dtype);
}

// Equal shape, dtype and every value; a NaN equals nothing.
inline ::testing::AssertionResult same(
    const at::Tensor& got, const at::Tensor& expected) {
  if (got.sizes() == expected.sizes() &&
      got.scalar_type() == expected.scalar_type() && at::equal(got, expected)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "got " << got << "\nexpected " << expected;
}

}  // namespace tessera::detail
