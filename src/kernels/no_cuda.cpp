// What kernels/cuda/*.cpp gives, for builds without CUDA's compiler: CUDA
// tensors are then served by compositions of ATen ops.
#include "kernels/bag/bag_kernels.h"
#include "kernels/device_errors.h"
#include "kernels/gather/gather_kernels.h"
#include "kernels/lookup/lookup_kernels.h"
#include "kernels/random/random_fill.h"

namespace tessera::detail {

std::atomic<const volatile int32_t*> device_error_flag{nullptr};

void raise_recorded_errors() {}

const LookupKernels& lookup_kernels_cuda() { return lookup_kernels_composed(); }

const GatherKernels& gather_kernels_cuda() { return gather_kernels_composed(); }

const BagKernels& bag_kernels_cuda() { return bag_kernels_composed(); }

decltype(fill_random_)* fill_random_cuda() { return fill_random_on_host; }

}  // namespace tessera::detail
