// Checks, and the choice between kernels by device, and compositions.
#include "kernels/bag/bag.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_select.h>
#include <c10/util/Exception.h>

#include "kernels/bag/bag_kernels.h"
#include "kernels/kernels_for.h"

namespace tessera::detail {

namespace {

void check_table_dtype(const char* name, const at::Tensor& t) {
  const at::ScalarType type = t.scalar_type();
  TORCH_CHECK_TYPE(
      type == at::kFloat || type == at::kDouble || type == at::kHalf ||
          type == at::kBFloat16,
      "[embedding_bag] ",
      name,
      " must be float, double, half or bfloat16, not ",
      type);
  TORCH_CHECK_VALUE(
      t.dim() == 2,
      "[embedding_bag] ",
      name,
      " must have 2 dimensions, not ",
      t.dim());
}

void check_devices(const at::Tensor& t, const BagIndices& input) {
  TORCH_CHECK_VALUE(
      t.device() == input.indices.device() &&
          t.device() == input.offsets.device(),
      "[embedding_bag] the table, indices and offsets must be on one device, "
      "but are on ",
      t.device(),
      ", ",
      input.indices.device(),
      " and ",
      input.offsets.device());
}

void check_per_sample_weights(
    const at::Tensor& t, const BagIndices& input, BagMode mode) {
  if (!input.per_sample_weights.has_value()) {
    return;
  }
  const at::Tensor& scales = *input.per_sample_weights;
  TORCH_CHECK_NOT_IMPLEMENTED(
      mode == BagMode::kSum,
      "[embedding_bag] per_sample_weights are supported only for mode sum; "
      "leave them out or use sum");
  TORCH_CHECK_TYPE(
      scales.scalar_type() == t.scalar_type(),
      "[embedding_bag] per_sample_weights must have the table's dtype, ",
      t.scalar_type(),
      ", not ",
      scales.scalar_type());
  TORCH_CHECK_VALUE(
      scales.sizes() == input.indices.sizes(),
      "[embedding_bag] per_sample_weights must have the size of indices, ",
      input.indices.sizes(),
      ", not ",
      scales.sizes());
}

void check_lookup(
    const at::Tensor& weight, const BagIndices& input, BagMode mode) {
  check_table_dtype("the table", weight);
  check_devices(weight, input);
  check_per_sample_weights(weight, input, mode);
}

// As the kernels read a table; rows may lie anywhere, so that a slice of rows
// or columns is not copied.
bool has_side_by_side_columns(const at::Tensor& weight) {
  return weight.stride(1) == 1 || weight.size(1) <= 1;
}

at::Tensor readable(const at::Tensor& weight) {
  return has_side_by_side_columns(weight) ? weight : weight.contiguous();
}

void check_backward(const BagGradient& bags) {
  const auto& [grad, part, input, mode, argmax] = bags;
  check_lookup(grad, input, mode);
  const int64_t count = input.offsets.numel() - input.include_last_offset;
  TORCH_CHECK_VALUE(
      grad.size(0) == count,
      "[embedding_bag] the gradient must have a row for each of the ",
      count,
      " bags, not ",
      grad.size(0));
  TORCH_INTERNAL_ASSERT(
      mode != BagMode::kMax ||
      (argmax.has_value() && argmax->scalar_type() == at::kInt &&
       argmax->sizes() == grad.sizes()));
}

at::Tensor backward(const BagGradient& bags, int64_t rows, bool sparse) {
  check_backward(bags);
  return kernels_for<BagKernels>(bags.grad).backward(bags, rows, sparse);
}

}  // namespace

at::Tensor checked_bag_bounds(
    const at::Tensor& weight,
    int64_t rows,
    const BagIndices& input,
    BagMode mode) {
  check_lookup(weight, input, mode);
  return kernels_for<BagKernels>(weight).bounds(input, rows);
}

at::Tensor bag_counts(const BagIndices& input) {
  return kernels_for<BagKernels>(input.indices).counts(input);
}

at::Tensor embedding_bag_part(
    const at::Tensor& weight,
    const BagPart& part,
    const BagIndices& input,
    BagMode mode,
    std::optional<at::ScalarType> result) {
  TORCH_INTERNAL_ASSERT(mode != BagMode::kMax);
  check_lookup(weight, input, mode);
  const at::ScalarType dtype = result.value_or(weight.scalar_type());
  TORCH_INTERNAL_ASSERT(
      dtype == weight.scalar_type() ||
      (dtype == at::kFloat && weight.scalar_type() != at::kDouble));
  return kernels_for<BagKernels>(weight).pool(
      {readable(weight), part, input}, mode, dtype);
}

BagMax embedding_bag_max_part(
    const at::Tensor& weight,
    const BagPart& part,
    const BagIndices& input,
    BagEmpty empty) {
  check_lookup(weight, input, BagMode::kMax);
  return kernels_for<BagKernels>(weight).max(
      {readable(weight), part, input}, empty);
}

at::Tensor bag_max_rows(const at::Tensor& argmax, const BagIndices& input) {
  if (input.indices.numel() == 0) {
    return at::full_like(argmax, -1, input.indices.options());
  }
  const at::Tensor places = argmax.clamp_min(0).to(at::kLong);
  return at::index_select(input.indices, 0, places.flatten())
      .view(argmax.sizes())
      .masked_fill(argmax.lt(0), -1);
}

at::Tensor embedding_bag_dense_backward(const BagGradient& bags, int64_t rows) {
  return backward(bags, rows, /*sparse=*/false);
}

at::Tensor embedding_bag_sparse_backward(
    const BagGradient& bags, int64_t rows) {
  return backward(bags, rows, /*sparse=*/true);
}

void embedding_bag_step_(
    const at::Tensor& weight, const BagGradient& bags, double rate) {
  check_backward(bags);
  const auto& grad = bags.grad;
  TORCH_INTERNAL_ASSERT(weight.dim() == 2 && weight.size(1) == grad.size(1));
  TORCH_INTERNAL_ASSERT(
      grad.scalar_type() == weight.scalar_type() ||
      grad.scalar_type() == at::toOpMathType(weight.scalar_type()));
  if (rate == 0) {
    return;
  }
  const auto& kernels = has_side_by_side_columns(weight)
                            ? kernels_for<BagKernels>(weight)
                            : BagKernels::composed();
  kernels.step(weight, bags, rate);
}

at::Tensor embedding_bag_weights_backward(
    const at::Tensor& grad,
    const at::Tensor& weight,
    const BagPart& part,
    const BagIndices& input) {
  check_lookup(weight, input, BagMode::kSum);
  const int64_t bags = input.offsets.numel() - input.include_last_offset;
  TORCH_CHECK_VALUE(
      grad.dim() == 2 && grad.size(0) == bags &&
          grad.size(1) == weight.size(1) &&
          grad.scalar_type() == weight.scalar_type(),
      "[embedding_bag] the gradient must be ",
      weight.scalar_type(),
      " of size [",
      bags,
      ", ",
      weight.size(1),
      "], not ",
      grad.scalar_type(),
      " ",
      grad.sizes());
  return kernels_for<BagKernels>(weight).weights_backward(
      grad, {readable(weight), part, input});
}

}  // namespace tessera::detail
