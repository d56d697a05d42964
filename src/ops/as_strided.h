// aten::as_strided, which speaks of a tensor's memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::detail {

// An alias where size, strides and offset are the tensor's own; a view of a
// replicated tensor whose shards have its strides; of others a copied view,
// after gathering. Throws c10::NotImplementedError where the result would reach
// memory that is not the tensor's own.
at::Tensor as_strided(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<c10::SymInt> storage_offset);

// The same with its gradient; that of an alias comes as it is.
at::Tensor recorded_as_strided(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<c10::SymInt> storage_offset);

}  // namespace tessera::detail
