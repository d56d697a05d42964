// Counting: tells the observers of each collective what each rank sends.
//
// The formulas, for a group of n ranks and a shard of b bytes on a rank. They
// count what a ring or a direct exchange sends at best; how a backend moves the
// bytes does not change them.
//
//   all_reduce        2 * (n - 1) * ceil(b / n)
//   all_gather        (n - 1) * b
//   reduce_scatter    b less the part this rank keeps
//   all_to_all        b less the part this rank keeps
//   all_to_all_rows   b less the rows this rank keeps
//   broadcast         (n - 1) * b at the root, 0 elsewhere
//   scatter           b less the part the root keeps at the root, 0 elsewhere
//   agree             (n - 1) * 16
//
// A group of one rank sends nothing and reports nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "comm/comm_event.h"

namespace tessera::detail {

// True while anyone listens; lets callers skip the arithmetic.
bool counting();

// The op on whose behalf this thread issues collectives; "" outside one.
std::string_view current_comm_cause();

// Tells every observer of one collective issued by this thread, in which each
// of `ranks`, those that live here, sends as many bytes.
void report(
    std::string_view collective,
    int64_t group_size,
    c10::ArrayRef<int64_t> ranks,
    c10::ArrayRef<int64_t> bytes);

inline int64_t all_reduce_bytes(const at::Tensor& in, int64_t n) {
  const auto bytes = static_cast<int64_t>(in.nbytes());
  return 2 * (n - 1) * ((bytes + n - 1) / n);
}

inline int64_t all_gather_bytes(const at::Tensor& in, int64_t n) {
  return static_cast<int64_t>(in.nbytes()) * (n - 1);
}

// What is left of `in` once `kept` of its `total` slices along a dimension are
// taken away.
inline int64_t bytes_but(const at::Tensor& in, int64_t kept, int64_t total) {
  const auto bytes = static_cast<int64_t>(in.nbytes());
  return total == 0 ? 0 : bytes / total * (total - kept);
}

constexpr int64_t kAgreeBytes = 16;

}  // namespace tessera::detail
