// Memory for results and buffers of collectives. A large block that the kernel
// hands out costs a page fault for every page of it, which is as much as moving
// the bytes; programs gather and reduce the same sizes step after step, so the
// blocks are kept and used again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace tessera::detail {

// A new contiguous tensor with nothing in it yet. In host memory a large one is
// put into a block that an earlier result has left, where one fits. An ordinary
// tensor otherwise: it may be resized and outlive the World.
at::Tensor empty_result(c10::IntArrayRef sizes, const at::TensorOptions& like);

// At most this much unused memory is kept.
constexpr size_t kIdleResultBytes = size_t{256} << 20;

// How much of it is kept at present; for tests.
size_t idle_result_bytes();

}  // namespace tessera::detail
