// Lookups of indices that every rank has gathered from all.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string_view>

namespace tessera::detail {

// The table of a gathered lookup, for its errors.
struct GatheredTable {
  int64_t rows;
  // Throws c10::IndexError for an index outside a table of so many rows.
  void (*throw_outside)(int64_t index, int64_t rows);
  std::string_view cause;
};

// Calls `lookup`, which looks up what was gathered from the ranks' `given`
// indices. A bad index is then an error on every rank, but none knows whose it
// is: the error names the rank that was given it. Communicates only for that.
at::Tensor look_up_gathered(
    const at::Tensor& given,
    const GatheredTable& table,
    c10::function_ref<at::Tensor()> lookup);

}  // namespace tessera::detail
