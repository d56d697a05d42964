// tessera::lookup: rows of a part of a table, with its gradient. On plain
// tensors, which say what part they are, and on distributed ones, whose layout
// says it. aten::embedding on distributed tensors is made of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "dispatch/own_op.h"
#include "kernels/lookup/embedding.h"

namespace tessera::detail {

// How a table is looked up.
struct LookupArgs {
  int64_t padding_idx = -1;  // a row that gets no gradient; -1 for none
  bool scale_grad_by_freq = false;
  bool sparse = false;  // the gradient holds only the touched rows
};

// out[..., :] is the row of each index; zeros for rows that are not held.
// Throws c10::IndexError for an index outside the table.
struct Lookup {
  static constexpr const char* kSchema =
      "lookup(Tensor weight, Tensor indices, int padding_idx=-1, "
      "bool scale_grad_by_freq=False, bool sparse=False, *, "
      "int first_row=0, int? table_rows=None) -> Tensor";
  using Result = at::Tensor;
  struct Args {
    at::Tensor weight;
    at::Tensor indices;
    LookupArgs options;
    HeldPart rows;
  };
};

// The op, recorded where the table needs a gradient: what call_op<Lookup> comes
// to, without the dispatcher.
at::Tensor recorded_lookup(const Lookup::Args& args);

// The gradient of a part's rows, where `grad` is that of what they were looked
// up for. Throws c10::NotImplementedError for one both sparse and scaled.
at::Tensor rows_gradient(
    const at::Tensor& grad, const HeldRows& held, const LookupArgs& options);

}  // namespace tessera::detail
