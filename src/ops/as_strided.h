// aten::as_strided, which speaks of a tensor's memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::detail {

// A view of a replicated tensor whose shards have its strides; of others a
// copied view, after gathering. Throws c10::NotImplementedError where the
// result would reach memory that is not the tensor's own.
at::Tensor as_strided(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<c10::SymInt> storage_offset);

}  // namespace tessera::detail
