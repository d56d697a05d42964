// What can be laid out over ranks.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::detail {

// Throws c10::TypeError, tagged with `caller`, unless `tensor` is an ordinary
// tensor, that can be split into shards: not undefined, quantized, nested,
// sparse, without memory, or wrapped by a functorch transform (vmap, grad,
// functionalize).
void check_plain_value(const at::Tensor& tensor, const char* caller);

}  // namespace tessera::detail
