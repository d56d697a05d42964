// Kernels read memory, which knows nothing of lazy conjugation and negation.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::detail {

// The tensor itself, or a copy whose memory holds its values.
inline at::Tensor resolved(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg();
}

}  // namespace tessera::detail
