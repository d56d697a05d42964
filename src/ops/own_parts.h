// Writes by index of which every rank writes what it holds.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::detail {

using Indices = c10::List<std::optional<at::Tensor>>;

// Whether every rank knows what self.index_put_(integers, values) writes where:
// integers and values are replicated, and nothing of `self` is pending.
// Requires: plain ones have been admitted, as the same on every rank.
bool knows_own_parts(
    const at::Tensor& self, const Indices& integers, const at::Tensor& values);

// Carries the write out on the shards of `self`. Does not communicate.
// Requires: knows_own_parts. Throws c10::IndexError, on every rank, for an
// index that is out of bounds.
void put_own_parts(
    const at::Tensor& self,
    const Indices& integers,
    const at::Tensor& values,
    bool accumulate);

}  // namespace tessera::detail
