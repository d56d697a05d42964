// Ops of our own that work on a part of a table or of a tensor: tessera::lookup
// and tessera::gather_part with their gradients. With autograd, on plain
// tensors (which say what part they are) and on distributed ones (whose layout
// says it). aten::embedding and aten::gather on distributed tensors are these.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::detail {

// How a table is looked up.
struct LookupArgs {
  int64_t padding_idx = -1;  // a row that gets no gradient; -1 for none
  bool scale_grad_by_freq = false;
  bool sparse = false;  // the gradient holds the touched rows alone
};

// tessera::lookup: out[..., :] is the row of each index. A plain `weight` may
// hold the rows from `first_row` of a table of `table_rows` rows: indices of
// other rows give zeros. Throws c10::IndexError for an index outside the table.
at::Tensor lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args,
    int64_t first_row = 0,
    std::optional<int64_t> table_rows = std::nullopt);

// tessera::lookup_backward: the gradient of `weight`, which is read for its
// layout and size alone.
at::Tensor lookup_backward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& weight,
    const LookupArgs& args,
    int64_t first_row = 0,
    std::optional<int64_t> table_rows = std::nullopt);

// tessera::gather_part of a whole tensor: aten::gather.
at::Tensor gather_distributed(
    const at::Tensor& self, int64_t dim, const at::Tensor& index);

}  // namespace tessera::detail
