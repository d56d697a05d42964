// The kernels behind gather.h, by device. Same contracts, but the arguments
// were checked, and `dim` is not negative.
#pragma once

#include <cstdint>

#include "kernels/gather/gather.h"

namespace tessera::detail {

struct GatherKernels {
  decltype(gather_part)* forward;
  decltype(gather_part_backward)* backward;

  // In one pass: range test, copy or zero, and the first bad index.
  static const GatherKernels& cpu();
  // A bad index gives zeros and is raised by a later call: see device_errors.h.
  // Without CUDA's compiler the composed ones.
  static const GatherKernels& cuda();
  // Compositions of ATen ops, for devices without kernels of ours. Finding a
  // bad index waits for the device.
  static const GatherKernels& composed();
};

// Throws the c10::IndexError of a gather along `dim` of `size`.
[[noreturn]] void throw_outside_dimension(
    int64_t index, int64_t dim, int64_t size);

}  // namespace tessera::detail
