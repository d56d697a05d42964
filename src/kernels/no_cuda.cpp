// What kernels/cuda/*.cpp gives, for builds without CUDA's compiler: CUDA
// tensors are then served by compositions of ATen ops.
#include "kernels/bag/bag_any_device.h"
#include "kernels/bag/bag_reader.h"
#include "kernels/cuda/bag_cuda.h"
#include "kernels/device_errors.h"
#include "kernels/gather/gather_kernels.h"
#include "kernels/lookup/lookup_kernels.h"
#include "kernels/lookup/renorm.h"
#include "kernels/lookup/route.h"
#include "kernels/random/random_fill.h"

namespace tessera::detail {

std::atomic<const volatile int32_t*> device_error_flag{nullptr};

void raise_recorded_errors() {}

const LookupKernels& lookup_kernels_cuda() { return lookup_kernels_composed(); }

const GatherKernels& gather_kernels_cuda() { return gather_kernels_composed(); }

at::Tensor bag_counts_cuda(const BagInput& input) {
  return compose_bag_counts(input);
}

at::Tensor checked_bag_bounds_cuda(const BagInput& input, int64_t rows) {
  return compose_bag_bounds(input, rows);
}

at::Tensor pool_bags_cuda(
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input,
    BagMode mode,
    at::ScalarType result) {
  return compose_bags(weight, part, input, mode, result);
}

BagMax max_bags_cuda(
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input,
    BagEmpty empty) {
  return compose_bag_max(weight, part, input, empty);
}

at::Tensor bags_backward_cuda(
    const BagGradient& bags, int64_t rows, bool sparse) {
  return compose_bags_backward(bags, rows, sparse);
}

void step_rows_cuda(
    const at::Tensor& weight, const BagGradient& bags, double rate) {
  compose_step(weight, bags, rate);
}

at::Tensor bag_weights_backward_cuda(
    const at::Tensor& grad,
    const at::Tensor& weight,
    const BagPart& part,
    const BagInput& input) {
  return compose_bag_weights_backward(grad, weight, part, input);
}

Route route_rows_cuda(const at::Tensor& indices, c10::IntArrayRef bounds) {
  return route_rows_composed(indices, bounds);
}

bool fill_random_cuda(
    const at::Tensor& /*shard*/,
    const RandomDraw& /*draw*/,
    RandomStream /*stream*/,
    const RandomRegion& /*region*/) {
  return false;
}

bool renorm_rows_cuda(
    const at::Tensor& /*weight*/,
    const at::Tensor& /*wanted*/,
    int64_t /*first_row*/,
    double /*max_norm*/,
    double /*norm_type*/) {
  return false;
}

}  // namespace tessera::detail
