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

#include "dispatch/own_op.h"
#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

using BatchNormResults = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The arguments that the ops of batch norm share.
struct Affine {
  at::Tensor input;
  std::optional<at::Tensor> weight;
  std::optional<at::Tensor> bias;
};

struct Running {
  std::optional<at::Tensor> mean;
  std::optional<at::Tensor> var;
};

// The same where the schema says that they are written.
struct WrittenRunning {
  Written mean;
  Written var;
  operator Running() const { return {mean.tensor, var.tensor}; }
};

struct Rates {
  double momentum;
  double eps;
};

std::optional<at::Tensor> in_dtype(
    const std::optional<at::Tensor>& tensor, at::ScalarType dtype) {
  return is_given(tensor) ? std::optional<at::Tensor>(tensor->to(dtype))
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
  sizes[1] = values.numel();
  return values.view(sizes);
}

void blend(
    const std::optional<at::Tensor>& running,
    const at::Tensor& value,
    double m) {
  if (is_given(running)) {
    running->copy_(at::add(at::mul(*running, 1 - m), at::mul(value, m)));
  }
}

// What ATen asks of weight, bias and running statistics: its kernels read an
// element for each channel. Those of the CPU read them in the dtype of the
// input or, where that is a half, in float.
class ParameterCheck {
 public:
  explicit ParameterCheck(const at::Tensor& input)
      : input_(input), dtype_(input.scalar_type()) {}

  void operator()(
      const char* name, const std::optional<at::Tensor>& parameter) {
    if (!is_given(parameter)) {
      return;
    }
    TORCH_CHECK(
        parameter->numel() == input_.size(1),
        name,
        " should contain ",
        input_.size(1),
        " elements not ",
        parameter->numel());
    if (!seen_) {
      seen_ = true;
      dtype_ = parameter->scalar_type();
    }
    const bool taken = dtype_ == input_.scalar_type() ||
                       (dtype_ == at::kFloat &&
                        c10::isReducedFloatingType(input_.scalar_type()));
    TORCH_CHECK(
        (taken && parameter->scalar_type() == dtype_) ||
            !input_.device().is_cpu(),
        "[batch_norm] expected parameters and statistics of the input's "
        "dtype, ",
        input_.scalar_type(),
        ", or all of them in float for an input of half precision, but ",
        name,
        " is ",
        parameter->scalar_type());
  }

 private:
  const at::Tensor& input_;
  at::ScalarType dtype_;
  bool seen_ = false;
};

void check_parameters(
    const Affine& affine, const Running& running, bool training) {
  TORCH_CHECK_INDEX(
      affine.input.dim() > 1,
      "[batch_norm] expected an input of at least two dimensions, samples and "
      "channels, but got one of shape ",
      affine.input.sizes());
  ParameterCheck check(affine.input);
  check("weight", affine.weight);
  check("bias", affine.bias);
  check("running_mean", running.mean);
  check("running_var", running.var);
  for (const auto* statistic : {&running.mean, &running.var}) {
    TORCH_CHECK(
        !is_given(*statistic) || (*statistic)->dim() == 1,
        "[batch_norm] expected running statistics of one dimension, but got "
        "one of shape ",
        (*statistic)->sizes());
  }
  TORCH_CHECK(
      training || (is_given(running.mean) && is_given(running.var)),
      "running_mean and running_var must be defined in evaluation mode");
}

// ATen's kernel for statistics that are given.
BatchNormResults normalized(
    const Affine& affine, const Running& running, const Rates& rates) {
  static const OpInfo& op = aten_op("native_batch_norm");
  const auto results = run_by_rule(
      op,
      affine.input,
      affine.weight,
      affine.bias,
      running.mean,
      running.var,
      /*training=*/false,
      rates.momentum,
      rates.eps);
  return tensors_of<BatchNormResults>(results);
}

// The dtype of the statistics that ATen's kernel saves for the backward pass:
// on the CPU that of the input, unless the parameters are wider.
at::ScalarType statistics_dtype(const Affine& affine, const Running& running) {
  const auto dtype = affine.input.scalar_type();
  const auto wide = accumulate_dtype(dtype);
  if (affine.input.is_cuda()) {
    return wide;
  }
  for (const auto& parameter :
       {affine.weight, affine.bias, running.mean, running.var}) {
    if (is_given(parameter) && parameter->scalar_type() == wide) {
      return wide;
    }
  }
  return dtype;
}

BatchNormResults batch_norm(
    const Affine& affine,
    const Running& running,
    bool training,
    const Rates& rates) {
  check_parameters(affine, running, training);
  if (!training) {
    return normalized(affine, running, rates);
  }
  const at::Tensor& input = affine.input;
  TORCH_CHECK(
      input.numel() > 0,
      "input tensor must have at least one element, but got input_sizes = ",
      input.sizes());
  const auto dtype = accumulate_dtype(input.scalar_type());
  const auto dims = sample_dims(input);
  const auto values = input.to(dtype);
  const auto mean = reduced(at::mean(values, dims));
  // In a second pass: deviations from the mean are small where values may not
  // be.
  const auto centred = at::sub(values, by_channel(mean, input));
  const auto var = reduced(at::mean(at::mul(centred, centred), dims));
  const auto count = static_cast<double>(samples_of(input));
  blend(running.mean, mean, rates.momentum);
  blend(running.var, at::mul(var, count / (count - 1)), rates.momentum);
  const Affine wide{
      input, in_dtype(affine.weight, dtype), in_dtype(affine.bias, dtype)};
  const auto saved = statistics_dtype(affine, running);
  return {
      std::get<0>(normalized(wide, {mean, var}, {0, rates.eps})),
      mean.to(saved),
      at::rsqrt(at::add(var, rates.eps)).to(saved)};
}

// What the backward pass is given besides gradient, input and weight.
struct Saved {
  Running running;
  std::optional<at::Tensor> mean;
  std::optional<at::Tensor> invstd;
  bool train = false;
  double eps = 0;
  std::array<bool, 3> wanted = {};
};

BatchNormResults batch_norm_backward(
    const at::Tensor& grad,
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const Saved& saved) {
  const bool train = saved.train;
  TORCH_CHECK(
      train ? is_given(saved.mean) && is_given(saved.invstd)
            : is_given(saved.running.mean) && is_given(saved.running.var),
      "[native_batch_norm_backward] expected ",
      train ? "save_mean and save_invstd" : "running_mean and running_var");
  const auto dtype = accumulate_dtype(input.scalar_type());
  const auto dims = sample_dims(input);
  const auto dy = grad.to(dtype);
  const auto mean = (train ? *saved.mean : *saved.running.mean).to(dtype);
  const auto invstd =
      train ? saved.invstd->to(dtype)
            : at::rsqrt(at::add(saved.running.var->to(dtype), saved.eps));
  const auto centred = at::sub(input.to(dtype), by_channel(mean, input));
  auto sum = at::sum(dy, dims);
  auto dot = at::sum(at::mul(dy, centred), dims);
  if (train) {
    // One message for both.
    const auto both = reduced(at::stack({sum, dot}));
    sum = both.select(0, 0);
    dot = both.select(0, 1);
  }
  const auto parameter_dtype = is_given(weight) ? weight->scalar_type() : dtype;
  BatchNormResults results;
  if (saved.wanted[0]) {
    const auto scale =
        is_given(weight) ? at::mul(invstd, weight->to(dtype)) : invstd;
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
  if (saved.wanted[1]) {
    std::get<1>(results) = at::mul(dot, invstd).to(parameter_dtype);
  }
  if (saved.wanted[2]) {
    std::get<2>(results) = sum.to(parameter_dtype);
  }
  return results;
}

at::Tensor no_reserve() { return at::empty({0}, at::kByte); }

// Each op of ATen's, by the parts of its arguments.
using Native = AtenOp<BatchNormResults, Affine, Running, bool, Rates>;
BatchNormResults native_batch_norm(const Native::Args& args) {
  return std::apply(batch_norm, args);
}

using Legit = AtenOp<BatchNormResults, Affine, WrittenRunning, bool, Rates>;
BatchNormResults with_statistics(const Legit::Args& args) {
  return std::apply(batch_norm, args);
}

using NoStatistics = AtenOp<BatchNormResults, Affine, bool, Rates>;
BatchNormResults without_statistics(const NoStatistics::Args& args) {
  const auto& [affine, training, rates] = args;
  return batch_norm(affine, {}, /*training=*/true, rates);
}

using Backward = AtenOp<
    BatchNormResults,
    at::Tensor,
    at::Tensor,
    std::optional<at::Tensor>,
    Saved>;
BatchNormResults native_backward(const Backward::Args& args) {
  return std::apply(batch_norm_backward, args);
}

// The last argument is the reserve.
using UpdateBackward = AtenOp<
    BatchNormResults,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    Saved,
    at::Tensor>;
BatchNormResults update_backward(const UpdateBackward::Args& args) {
  const auto& [grad, input, weight, saved, reserve] = args;
  return batch_norm_backward(grad, input, weight, saved);
}

using Update = AtenOp<
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>,
    Affine,
    WrittenRunning,
    Rates>;
Update::Result with_update(const Update::Args& args) {
  const auto& [affine, running, rates] = args;
  return std::tuple_cat(
      batch_norm(affine, running, /*training=*/true, rates),
      std::tuple{no_reserve()});
}

// The last argument is whether cuDNN may serve. Which kernel one device would
// take is no matter here.
using ImplIndex = AtenOp<
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t>,
    Affine,
    Running,
    bool,
    Rates,
    bool>;
ImplIndex::Result batch_norm_impl_index(const ImplIndex::Args& args) {
  const auto& [affine, running, training, rates, cudnn] = args;
  const auto& [input, weight, bias] = affine;
  if (input.numel() == 0) {
    // ATen takes any number of dimensions here, and no statistics.
    auto output = input.clone();
    if (is_given(weight)) {
      output = at::mul(output, weight->select(0, 0));
    }
    if (is_given(bias)) {
      output = at::add(output, bias->select(0, 0));
    }
    const auto none = at::empty({0}, input.scalar_type());
    return {output, none, none, no_reserve(), 0};
  }
  return std::tuple_cat(
      at::native_batch_norm(
          input,
          weight,
          bias,
          running.mean,
          running.var,
          training,
          rates.momentum,
          rates.eps),
      std::tuple{no_reserve(), int64_t{0}});
}

}  // namespace

void register_batch_norm(OpRegistry& ops) {
  ops.composed("native_batch_norm", kUnpacked<Native, &native_batch_norm>);
  ops.composed("_native_batch_norm_legit", kUnpacked<Legit, &with_statistics>);
  ops.composed(
      "_native_batch_norm_legit.no_stats",
      kUnpacked<NoStatistics, &without_statistics>);
  ops.composed(
      "native_batch_norm_backward", kUnpacked<Backward, &native_backward>);
  ops.composed("_batch_norm_with_update", kUnpacked<Update, &with_update>);
  ops.composed(
      "batch_norm_backward", kUnpacked<UpdateBackward, &update_backward>);
  const auto impl_index = kUnpacked<ImplIndex, &batch_norm_impl_index>;
  ops.composed("_batch_norm_impl_index", impl_index);
  ops.above_autograd("_batch_norm_impl_index", impl_index);
}

}  // namespace tessera::detail
