// Gradients of tables are large and nearly all zero.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace tessera::detail {

// at::zeros(sizes, options) on the CPU, without writing the zeros of a large
// one: its memory comes from the system, which gives zeros where it is first
// touched. The tensor owns its memory, and its storage can be resized.
at::Tensor lazy_zeros(c10::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace tessera::detail
