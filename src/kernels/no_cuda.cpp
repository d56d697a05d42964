// What kernels/cuda/*.cpp gives, for builds without CUDA's compiler: CUDA
// tensors are then served by compositions of ATen ops.
#include "kernels/bag/bag_kernels.h"
#include "kernels/device_errors.h"
#include "kernels/gather/gather_kernels.h"
#include "kernels/lookup/lookup_kernels.h"
#include "kernels/random/random_fill.h"
#include "kernels/reduce/reduce_terms.h"

namespace tessera::detail {

std::atomic<const volatile int32_t*> device_error_flag{nullptr};

void raise_recorded_errors() {}

const LookupKernels& LookupKernels::cuda() { return LookupKernels::composed(); }

const GatherKernels& GatherKernels::cuda() { return GatherKernels::composed(); }

const BagKernels& BagKernels::cuda() { return BagKernels::composed(); }

decltype(fill_random_)* fill_random_cuda() { return fill_random_on_host; }

bool reduce_terms_cuda(
    c10::ArrayRef<at::Tensor> /*outs*/,
    c10::ArrayRef<at::Tensor> /*terms*/,
    ReduceOp /*op*/) {
  return false;
}

}  // namespace tessera::detail
