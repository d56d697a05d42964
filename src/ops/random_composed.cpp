// Random ops that are composed of others. What they draw for a tensor with a
// pending reduction is replicated: empty_like forgets reductions.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/all.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "dispatch/own_op.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/random.h"

namespace tessera::detail {

namespace {

at::Tensor uniform_like(
    const at::Tensor& like, const OptionalGenerator& generator) {
  auto u = at::empty_like(like, like.options().dtype(at::kDouble));
  return uniform_(u, 0, 1, generator);
}

at::Tensor& log_normal_(
    at::Tensor& self, double mean, double std, OptionalGenerator generator) {
  probe_of(self, Integers::kRefused).log_normal_(mean, std, probe_generator());
  auto z = at::empty_like(self, self.options().dtype(at::kDouble));
  return self.copy_(at::exp(normal_(z, mean, std, std::move(generator))));
}

at::Tensor& cauchy_(
    at::Tensor& self,
    double median,
    double sigma,
    OptionalGenerator generator) {
  probe_of(self, Integers::kRefused).cauchy_(median, sigma, probe_generator());
  const auto u = uniform_like(self, generator);
  const auto slopes = at::tan(at::mul(at::sub(u, 0.5), std::numbers::pi));
  return self.copy_(at::add(at::mul(slopes, sigma), median));
}

at::Tensor& geometric_(
    at::Tensor& self, double p, OptionalGenerator generator) {
  probe_of(self, Integers::kRefused).geometric_(p, probe_generator());
  // On (0, 1], whose logarithm is finite; the first trial is number 1.
  const auto u = at::rsub(uniform_like(self, generator), 1);
  const auto trials = at::ceil(at::div(at::log(u), std::log1p(-p)));
  return self.copy_(at::clamp_min(trials, 1));
}

// Whether a condition holds for all elements. Every rank of the mesh learns the
// same; those outside hold nothing to complain of. Communicates.
bool everywhere(const at::Tensor& condition) {
  const bool nothing_here =
      condition.is_meta() || condition.numel() == 0 ||
      (is_dtensor(condition) &&
       distributed_meta(condition).spec->mesh.local_positions().empty());
  return nothing_here || at::all(condition).item<bool>();
}

void check_probabilities(const at::Tensor& self, const at::Tensor& p) {
  const int64_t elements = std::max(
      probe_of(self, Integers::kTaken).numel(),
      probe_of(p, Integers::kRefused).numel());
  at::zeros({elements}, self.scalar_type())
      .bernoulli_(at::zeros({elements}, p.scalar_type()), probe_generator());
  TORCH_CHECK(
      everywhere(at::logical_and(at::ge(p, 0), at::le(p, 1))),
      "[bernoulli] expected probabilities between 0 and 1, but some are "
      "outside of that or nan");
}

at::Tensor& bernoulli_by_tensor_(
    at::Tensor& self, const at::Tensor& p, OptionalGenerator generator) {
  check_probabilities(self, p);
  return self.copy_(at::lt(uniform_like(self, generator), p));
}

at::Tensor bernoulli(const at::Tensor& self, OptionalGenerator generator) {
  check_probabilities(self, self);
  return at::lt(uniform_like(self, generator), self).to(self.scalar_type());
}

at::Tensor bernoulli_by_number(
    const at::Tensor& self, double p, OptionalGenerator generator) {
  auto out = at::empty_like(self);
  return bernoulli_(out, p, std::move(generator));
}

// What a new tensor is like, where it differs from `self`.
struct LikeOptions {
  std::optional<at::ScalarType> dtype;
  std::optional<at::Layout> layout;
  std::optional<at::Device> device;
  std::optional<bool> pin_memory;
  std::optional<at::MemoryFormat> memory_format;

  at::Tensor empty_like(const at::Tensor& self) const {
    return at::empty_like(
        self, dtype, layout, device, pin_memory, memory_format);
  }
};

using FilledLike = AtenOp<at::Tensor, at::Tensor, LikeOptions>;
template <
    at::Tensor& (*kFill)(at::Tensor&, double, double, OptionalGenerator),
    int kFrom>
at::Tensor filled_like(const FilledLike::Args& args) {
  const auto& [self, options] = args;
  auto out = options.empty_like(self);
  return kFill(out, kFrom, 1, std::nullopt);
}

at::Tensor randint(
    const at::Tensor& self,
    const c10::SymInt& low,
    const c10::SymInt& high,
    const LikeOptions& options) {
  auto out = options.empty_like(self);
  return random_from_to_(
      out,
      low.guard_int(__FILE__, __LINE__),
      high.guard_int(__FILE__, __LINE__),
      std::nullopt);
}

using RandintFromLike =
    AtenOp<at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, LikeOptions>;
at::Tensor randint_from_like(const RandintFromLike::Args& args) {
  return std::apply(randint, args);
}

using RandintLike = AtenOp<at::Tensor, at::Tensor, c10::SymInt, LikeOptions>;
at::Tensor randint_like(const RandintLike::Args& args) {
  const auto& [self, high, options] = args;
  return randint(self, 0, high, options);
}

void check_deviations(const at::Tensor& std) {
  TORCH_CHECK(
      !std.is_complex(), "normal expects standard deviation to be non-complex");
  TORCH_CHECK(
      everywhere(at::ge(std, 0)), "normal expects all elements of std >= 0.0");
}

at::Tensor normal_like(
    const at::Tensor& like, const OptionalGenerator& generator) {
  auto z = at::empty_like(like);
  return normal_(z, 0, 1, generator);
}

at::Tensor normal_by_tensors(
    const at::Tensor& mean,
    const at::Tensor& std,
    OptionalGenerator generator) {
  check_deviations(std);
  probe_of(mean, Integers::kRefused).normal_(0, 1, probe_generator());
  // Of the shape that the two broadcast to.
  const auto z = normal_like(at::add(mean, std), generator);
  return at::add(mean, at::mul(std, z)).to(mean.scalar_type());
}

at::Tensor normal_by_mean(
    const at::Tensor& mean, double std, OptionalGenerator generator) {
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
  return at::add(mean, normal_like(mean, generator), std);
}

at::Tensor normal_by_deviation(
    double mean, const at::Tensor& std, OptionalGenerator generator) {
  check_deviations(std);
  return at::add(at::mul(std, normal_like(std, generator)), mean);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(
    const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {
        input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  bernoulli_(mask, 1 - p, std::nullopt);
  const double scale = p == 1 ? 0.0 : 1.0 / (1.0 - p);
  return {at::mul(at::mul(input, mask), scale), mask};
}

// The slopes of negative inputs are drawn; `noise` is written.
at::Tensor rrelu_with_noise(
    const at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    OptionalGenerator generator) {
  TORCH_CHECK(
      self.sizes() == noise.sizes(),
      "noise tensor shape must match self tensor shape, but got ",
      noise.sizes(),
      " for ",
      self.sizes());
  if (!training) {
    return at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2);
  }
  auto slopes = at::empty_like(self);
  uniform_(slopes, lower.toDouble(), upper.toDouble(), std::move(generator));
  noise.copy_(at::where(at::le(self, 0), slopes, 1));
  return at::mul(self, noise);
}

at::Tensor& rrelu_with_noise_(
    at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    OptionalGenerator generator) {
  return self.copy_(tessera::detail::rrelu_with_noise(
      self, noise, lower, upper, training, std::move(generator)));
}

// One of the last dimension's entries each, by its weight: the first to arrive
// where arrivals are exponential.
at::Tensor race(const at::Tensor& weights, const OptionalGenerator& generator) {
  auto arrivals = at::empty_like(weights);
  exponential_(arrivals, 1, generator);
  return at::div(weights, arrivals);
}

// What ATen asks of the values of a distribution: every row has a category to
// draw.
void check_weights(const at::Tensor& weights) {
  const auto valid = at::logical_and(
      at::ge(weights, 0),
      at::lt(weights, std::numeric_limits<double>::infinity()));
  // One reduction for both questions: nan is not greater than 0 either.
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto sums =
      at::sum(at::masked_fill(weights, valid.logical_not(), nan), -1);
  if (everywhere(at::gt(sums, 0))) {
    return;
  }
  TORCH_CHECK(
      everywhere(valid),
      "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(
      false, "invalid multinomial distribution (sum of probabilities <= 0)");
}

at::Tensor multinomial(
    const at::Tensor& self,
    c10::SymInt samples,
    bool replacement,
    OptionalGenerator generator) {
  const int64_t count = samples.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(
      self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      c10::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ",
      self.scalar_type());
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(
      replacement || count <= self.size(-1),
      "cannot sample n_sample > prob_dist.size(-1) samples without "
      "replacement");
  // Plain tensors draw in float.
  constexpr int64_t kMostCategories = int64_t{1} << 24;
  TORCH_CHECK(
      self.size(-1) <= kMostCategories,
      "number of categories cannot exceed 2^24");
  check_weights(self);
  if (!replacement) {
    return std::get<1>(at::topk(race(self, generator), count, -1));
  }
  std::vector<at::Tensor> drawn;
  for (int64_t i = 0; i < count; ++i) {
    drawn.push_back(at::argmax(race(self, generator), -1, /*keepdim=*/true));
  }
  return at::cat(drawn, -1);
}

at::Tensor& random_to_(
    at::Tensor& self, int64_t to, OptionalGenerator generator) {
  return random_from_to_(self, 0, to, std::move(generator));
}

at::Tensor& random_(at::Tensor& self, OptionalGenerator generator) {
  return random_from_to_(self, 0, std::nullopt, std::move(generator));
}

}  // namespace

void register_random(OpRegistry& ops) {
  ops.own_kernel("uniform_", &uniform_);
  ops.own_kernel("normal_", &normal_);
  ops.own_kernel("exponential_", &exponential_);
  ops.own_kernel("bernoulli_.float", &bernoulli_);
  ops.own_kernel("random_", &random_);
  ops.own_kernel("random_.to", &random_to_);
  ops.own_kernel("random_.from", &random_from_to_);
  ops.composed("log_normal_", &log_normal_);
  ops.composed("cauchy_", &cauchy_);
  ops.composed("geometric_", &geometric_);
  ops.composed("bernoulli_.Tensor", &bernoulli_by_tensor_);
  ops.composed("bernoulli", &bernoulli);
  ops.composed("bernoulli.p", &bernoulli_by_number);
  ops.composed("rand_like", kUnpacked<FilledLike, &filled_like<&uniform_, 0>>);
  ops.composed("randn_like", kUnpacked<FilledLike, &filled_like<&normal_, 0>>);
  ops.composed("randint_like", kUnpacked<RandintLike, &randint_like>);
  ops.composed(
      "randint_like.low_dtype", kUnpacked<RandintFromLike, &randint_from_like>);
  ops.composed("normal.Tensor_Tensor", &normal_by_tensors);
  ops.composed("normal.Tensor_float", &normal_by_mean);
  ops.composed("normal.float_Tensor", &normal_by_deviation);
  ops.composed("native_dropout", &native_dropout);
  ops.composed("rrelu_with_noise", &rrelu_with_noise);
  ops.composed("rrelu_with_noise_", &rrelu_with_noise_);
  ops.composed("multinomial", &multinomial);
}

}  // namespace tessera::detail
