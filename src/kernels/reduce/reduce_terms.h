// The reduction of one tensor a rank, in one kernel of a GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "tessera/placement.h"

namespace tessera::detail {

// Writes the reduction of `terms`, taken in order, to each of `outs`, in one
// kernel; half and bfloat16 are summed in float. The bits are those of the same
// reduction on the CPU. Returns false, and writes nothing, where there is no
// such kernel: in builds without CUDA's compiler, for types that are not
// floating-point, for tensors that are not contiguous, for more than 64 of
// them. Requires: all have the same shape and type, on one CUDA device; `outs`
// overlap nothing.
bool reduce_terms_cuda(
    c10::ArrayRef<at::Tensor> outs,
    c10::ArrayRef<at::Tensor> terms,
    ReduceOp op);

}  // namespace tessera::detail
