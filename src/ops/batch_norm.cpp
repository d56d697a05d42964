// Batch norm over the whole batch, however it is sharded: the statistics and
// the running statistics are those of one device. Ranks send each other only
// sums of channels: means and variances forward, and backward the sums that the
// gradients of weight and bias are made of.
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <array>
#include <tuple>

#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

using BatchNormResults = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

bool was_given(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

std::optional<at::Tensor> in_dtype(
    const std::optional<at::Tensor>& tensor, at::ScalarType dtype) {
  return was_given(tensor) ? std::optional<at::Tensor>(tensor->to(dtype))
                           : std::nullopt;
}

at::Tensor reduced(const at::Tensor& tensor) {
  return reduced_for(tensor, "aten::native_batch_norm");
}

// All dimensions but that of the channels.
c10::SmallVector<int64_t, 5> sample_dims(const at::Tensor& input) {
  c10::SmallVector<int64_t, 5> dims;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d != 1) {
      dims.push_back(d);
    }
  }
  return dims;
}

int64_t samples_of(const at::Tensor& input) {
  return input.size(1) == 0 ? 0 : input.numel() / input.size(1);
}

// Values of channels, to be broadcast over the input.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  c10::SmallVector<int64_t, 5> sizes(input.dim(), 1);
  sizes[1] = values.size(0);
  return values.view(sizes);
}

void blend(
    const std::optional<at::Tensor>& running,
    const at::Tensor& value,
    double m) {
  if (was_given(running)) {
    running->copy_(at::add(at::mul(*running, 1 - m), at::mul(value, m)));
  }
}

// ATen's kernel for statistics that are given.
at::Tensor normalized(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    const at::Tensor& mean,
    const at::Tensor& var,
    double eps) {
  static const OpInfo& op = aten_op("native_batch_norm");
  return run_by_rule(
             op,
             input,
             weight,
             bias,
             mean,
             var,
             /*training=*/false,
             0.0,
             eps)[0]
      .toTensor();
}

BatchNormResults native_batch_norm(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var,
    bool training,
    double momentum,
    double eps) {
  static const OpInfo& op = aten_op("native_batch_norm");
  if (!training) {
    const auto results = run_by_rule(
        op,
        input,
        weight,
        bias,
        running_mean,
        running_var,
        training,
        momentum,
        eps);
    return {
        results[0].toTensor(), results[1].toTensor(), results[2].toTensor()};
  }
  const auto dtype = accumulate_dtype(input.scalar_type());
  const auto dims = sample_dims(input);
  const auto values = input.to(dtype);
  const auto mean = reduced(at::mean(values, dims));
  // In a second pass: deviations from the mean are small where values may not
  // be.
  const auto centred = at::sub(values, by_channel(mean, input));
  const auto var = reduced(at::mean(at::mul(centred, centred), dims));
  const auto count = static_cast<double>(samples_of(input));
  blend(running_mean, mean, momentum);
  blend(running_var, at::mul(var, count / (count - 1)), momentum);
  return {
      normalized(
          input,
          in_dtype(weight, dtype),
          in_dtype(bias, dtype),
          mean,
          var,
          eps),
      mean,
      at::rsqrt(at::add(var, eps))};
}

BatchNormResults with_statistics(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    at::Tensor& running_mean,
    at::Tensor& running_var,
    bool training,
    double momentum,
    double eps) {
  return detail::native_batch_norm(
      input, weight, bias, running_mean, running_var, training, momentum, eps);
}

BatchNormResults without_statistics(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    bool /*training*/,
    double momentum,
    double eps) {
  return detail::native_batch_norm(
      input, weight, bias, std::nullopt, std::nullopt, true, momentum, eps);
}

BatchNormResults native_batch_norm_backward(
    const at::Tensor& grad,
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var,
    const std::optional<at::Tensor>& saved_mean,
    const std::optional<at::Tensor>& saved_invstd,
    bool train,
    double eps,
    std::array<bool, 3> wanted) {
  const auto dtype = accumulate_dtype(input.scalar_type());
  const auto dims = sample_dims(input);
  const auto dy = grad.to(dtype);
  const auto mean = (train ? *saved_mean : *running_mean).to(dtype);
  const auto invstd = train ? saved_invstd->to(dtype)
                            : at::rsqrt(at::add(running_var->to(dtype), eps));
  const auto centred = at::sub(input.to(dtype), by_channel(mean, input));
  auto sum = at::sum(dy, dims);
  auto dot = at::sum(at::mul(dy, centred), dims);
  if (train) {
    // One message for both.
    const auto both = reduced(at::stack({sum, dot}));
    sum = both.select(0, 0);
    dot = both.select(0, 1);
  }
  const auto parameter_dtype =
      was_given(weight) ? weight->scalar_type() : dtype;
  BatchNormResults results;
  if (wanted[0]) {
    const auto scale =
        was_given(weight) ? at::mul(invstd, weight->to(dtype)) : invstd;
    auto change = dy;
    if (train) {
      const auto count = static_cast<double>(samples_of(input));
      const auto slope = at::div(at::mul(dot, at::mul(invstd, invstd)), count);
      change = at::sub(
          at::sub(dy, by_channel(at::div(sum, count), input)),
          at::mul(centred, by_channel(slope, input)));
    }
    std::get<0>(results) =
        at::mul(change, by_channel(scale, input)).to(input.scalar_type());
  }
  if (wanted[1]) {
    std::get<1>(results) = at::mul(dot, invstd).to(parameter_dtype);
  }
  if (wanted[2]) {
    std::get<2>(results) = sum.to(parameter_dtype);
  }
  return results;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> with_update(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    at::Tensor& running_mean,
    at::Tensor& running_var,
    double momentum,
    double eps) {
  auto [output, mean, invstd] = detail::native_batch_norm(
      input, weight, bias, running_mean, running_var, true, momentum, eps);
  return {output, mean, invstd, at::empty({0}, at::kByte)};
}

BatchNormResults update_backward(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var,
    const std::optional<at::Tensor>& saved_mean,
    const std::optional<at::Tensor>& saved_invstd,
    bool update,
    double eps,
    std::array<bool, 3> wanted,
    const at::Tensor& /*reserve*/) {
  return detail::native_batch_norm_backward(
      grad,
      input,
      weight,
      running_mean,
      running_var,
      saved_mean,
      saved_invstd,
      update,
      eps,
      wanted);
}

// Which kernel one device would take, cuDNN's say, is no matter here.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t>
batch_norm_impl_index(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var,
    bool training,
    double momentum,
    double eps,
    bool /*cudnn_enabled*/) {
  if (input.numel() == 0) {
    // ATen takes any number of dimensions here, and no statistics.
    auto output = input.clone();
    if (was_given(weight)) {
      output = at::mul(output, weight->select(0, 0));
    }
    if (was_given(bias)) {
      output = at::add(output, bias->select(0, 0));
    }
    const auto none = at::empty({0}, input.scalar_type());
    return {output, none, none, at::empty({0}, at::kByte), 0};
  }
  auto [output, mean, invstd] = at::native_batch_norm(
      input, weight, bias, running_mean, running_var, training, momentum, eps);
  return {output, mean, invstd, at::empty({0}, at::kByte), 0};
}

}  // namespace

void register_batch_norm(OpRegistry& ops) {
  ops.composed("native_batch_norm", &detail::native_batch_norm);
  ops.composed("_native_batch_norm_legit", &with_statistics);
  ops.composed("_native_batch_norm_legit.no_stats", &without_statistics);
  ops.composed("native_batch_norm_backward", &native_batch_norm_backward);
  ops.composed("_batch_norm_with_update", &with_update);
  ops.composed("batch_norm_backward", &update_backward);
  ops.composed("_batch_norm_impl_index", &batch_norm_impl_index);
  ops.above_autograd("_batch_norm_impl_index", &batch_norm_impl_index);
}

}  // namespace tessera::detail
