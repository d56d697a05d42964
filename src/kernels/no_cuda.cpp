// What kernels/cuda/*.cpp gives, for builds without CUDA's compiler: CUDA
// tensors are then served by compositions of ATen ops.
#include "kernels/bag/bag_any_device.h"
#include "kernels/bag/bag_reader.h"
#include "kernels/cuda/bag_cuda.h"
#include "kernels/cuda/embedding_cuda.h"
#include "kernels/cuda/gather_cuda.h"
#include "kernels/cuda/route_cuda.h"
#include "kernels/device_errors.h"
#include "kernels/gather/gather_any_device.h"
#include "kernels/lookup/embedding_any_device.h"
#include "kernels/lookup/renorm.h"
#include "kernels/lookup/route_any_device.h"
#include "kernels/random/random_fill.h"

namespace tessera::detail {

std::atomic<const volatile int32_t*> device_error_flag{nullptr};

void raise_recorded_errors() {}

at::Tensor lookup_rows_cuda(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t table_rows) {
  return lookup_rows_any_device(weight, indices, first_row, table_rows);
}

at::Tensor lookup_rows_backward_cuda(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t rows,
    int64_t table_rows,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  return lookup_rows_backward_any_device(
      grad,
      indices,
      first_row,
      rows,
      table_rows,
      padding_idx,
      scale_grad_by_freq);
}

at::Tensor lookup_rows_sparse_backward_cuda(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t rows,
    int64_t table_rows,
    int64_t padding_idx) {
  return lookup_rows_sparse_backward_any_device(
      grad, indices, first_row, rows, table_rows, padding_idx);
}

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

at::Tensor gather_part_cuda(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    int64_t first,
    int64_t size) {
  return gather_part_any_device(self, dim, index, first, size);
}

at::Tensor gather_part_backward_cuda(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& index,
    c10::IntArrayRef local_sizes,
    int64_t first,
    int64_t size) {
  return gather_part_backward_any_device(
      grad, dim, index, local_sizes, first, size);
}

Route route_rows_cuda(const at::Tensor& indices, c10::IntArrayRef bounds) {
  return route_rows_any_device(indices, bounds);
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
