// The kernels behind gather.h, by device. Same contracts, but the arguments
// were checked, and `dim` is not negative.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace tessera::detail {

// Places in [0, size) of the whole dimension `dim`, of which what is held here
// begins at `first`.
struct GatherPart {
  int64_t dim;
  const at::Tensor& index;
  int64_t first;
  int64_t size;
};

struct GatherKernels {
  // gather_part.
  at::Tensor (*forward)(const at::Tensor& self, const GatherPart& part);
  // gather_part_backward.
  at::Tensor (*backward)(
      const at::Tensor& grad,
      const GatherPart& part,
      c10::IntArrayRef local_sizes);

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
