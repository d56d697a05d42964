// The exchange: indices that are sharded over the ranks which share a table's
// rows. Each distinct index goes to the rank that holds its row, and the row
// comes back; in the backward pass the gradients of the rows take the same way.
#pragma once

#include <optional>
#include <string_view>

#include "dispatch/tensor.h"
#include "embedding/part_ops.h"

namespace tessera::detail {

// What caused the communication of a lookup, as counted.
inline constexpr std::string_view kLookupCause = "aten::embedding";

// How an exchange would lie.
struct ExchangeLayout {
  int64_t mesh_dim;     // along which rows and indices are both cut
  Placements output;    // of the rows looked up
  Placements gradient;  // of the table
};

// nullopt where the exchange cannot serve: no mesh dimension cuts the table's
// rows and the indices, several cut its rows, or there are no data (meta).
std::optional<ExchangeLayout> exchange_layout(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args);

// The rows of `indices`, differentiable by `weight`. Throws c10::IndexError on
// every rank if one of them has an index outside the table.
at::Tensor exchange_lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args,
    const ExchangeLayout& layout);

}  // namespace tessera::detail
