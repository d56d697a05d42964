#include "dispatch/random.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>

#include <mutex>

#include "dispatch/handwritten.h"
#include "dispatch/tensor.h"
#include "kernels/random_fill.h"
#include "tessera/language.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using Generator = std::optional<at::Generator>;

// Ranks run the same program, so their streams stay in step.
class RandomState {
 public:
  void seed(uint64_t seed) {
    const std::lock_guard lock(mutex_);
    next_ = {seed, 0};
  }
  RandomStream next() {
    const std::lock_guard lock(mutex_);
    const RandomStream stream = next_;
    ++next_.op;
    return stream;
  }

 private:
  std::mutex mutex_;
  RandomStream next_{0, 0};
};

RandomState& random_state() {
  static RandomState state;
  return state;
}

RandomRegion region_of(const Spec& spec, int64_t position) {
  RandomRegion region;
  for (int64_t d = 0; d < spec.dim(); ++d) {
    const Range held =
        local_range(spec.sizes[d], d, spec.mesh, spec.placements, position);
    region.push_back({held.begin, held.size, spec.sizes[d]});
  }
  return region;
}

void check_fillable(
    const char* op, const at::Tensor& self, const Generator& generator) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !generator.has_value() || !generator->defined(),
      "[",
      op,
      "] a generator of one's own is not supported on distributed tensors: "
      "ranks must draw in step; seed with ",
      spell("tessera::manual_seed"));
  TORCH_CHECK(
      is_dtensor(self),
      "[",
      op,
      "] a plain tensor is filled from distributed arguments");
  const auto& meta = distributed_meta(self);
  begin_write(self, op);
  for (const auto& placement : meta.spec->placements) {
    TORCH_CHECK(
        !placement.is_partial(),
        "[",
        op,
        "] cannot fill the terms of a pending reduction, ",
        to_string(meta.spec->placements),
        ": redistribute the tensor first");
  }
}

// Fills the shards of `self` with the numbers of its elements.
const at::Tensor& fill(
    const char* op,
    const at::Tensor& self,
    const Generator& generator,
    const RandomDraw& draw) {
  check_fillable(op, self, generator);
  const RandomStream stream = random_state().next();
  const auto& meta = distributed_meta(self);
  const auto& shards = current_shards(self);
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].is_meta()) {
      fill_random_(
          shards[i],
          draw,
          stream,
          region_of(*meta.spec, meta.spec->mesh.local_positions()[i]));
    }
  }
  return self;
}

at::Tensor& uniform_(
    at::Tensor& self, double from, double to, Generator generator) {
  fill(
      "aten.uniform_.default",
      self,
      generator,
      {.distribution = Distribution::kUniform, .a = from, .b = to});
  return self;
}

at::Tensor& normal_(
    at::Tensor& self, double mean, double std, Generator generator) {
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
  fill(
      "aten.normal_.default",
      self,
      generator,
      {.distribution = Distribution::kNormal, .a = mean, .b = std});
  return self;
}

at::Tensor& exponential_(at::Tensor& self, double lambda, Generator generator) {
  TORCH_CHECK(
      lambda > 0,
      "exponential_ expects lambda > 0.0, but found lambda=",
      lambda);
  fill(
      "aten.exponential_.default",
      self,
      generator,
      {.distribution = Distribution::kExponential, .a = lambda});
  return self;
}

at::Tensor& bernoulli_(at::Tensor& self, double p, Generator generator) {
  TORCH_CHECK(
      0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  fill(
      "aten.bernoulli_.float",
      self,
      generator,
      {.distribution = Distribution::kBernoulli, .a = p});
  return self;
}

at::Tensor uniform_like(const at::Tensor& like, const Generator& generator) {
  auto u = at::empty_like(like, like.options().dtype(at::kDouble));
  return uniform_(u, 0, 1, generator);
}

at::Tensor& bernoulli_by_tensor_(
    at::Tensor& self, const at::Tensor& p, Generator generator) {
  check_fillable("aten.bernoulli_.Tensor", self, generator);
  return self.copy_(at::lt(uniform_like(self, generator), p));
}

at::Tensor bernoulli(const at::Tensor& self, Generator generator) {
  return at::lt(uniform_like(self, generator), self).to(self.scalar_type());
}

at::Tensor bernoulli_by_number(
    const at::Tensor& self, double p, Generator generator) {
  auto out = at::empty_like(self);
  return bernoulli_(out, p, generator);
}

// Integers of [from, to), uniformly; the range may be all of int64.
at::Tensor& random_in_(
    at::Tensor& self,
    int64_t from,
    uint64_t range,
    const Generator& generator) {
  TORCH_CHECK(range > 0, "random_ expects 'from' to be less than 'to'");
  // Values beyond 2^53 are not exact as doubles, as in a float tensor.
  fill(
      "aten.random_",
      self,
      generator,
      {.distribution = Distribution::kInteger, .from = from, .range = range});
  return self;
}

at::Tensor& random_from_to_(
    at::Tensor& self,
    int64_t from,
    std::optional<int64_t> to,
    Generator generator) {
  const int64_t end = to.value_or(int64_t{1} << 53);
  return random_in_(
      self,
      from,
      end > from ? static_cast<uint64_t>(end - from) : 0,
      generator);
}

at::Tensor& random_to_(at::Tensor& self, int64_t to, Generator generator) {
  return random_from_to_(self, 0, to, std::move(generator));
}

at::Tensor& random_(at::Tensor& self, Generator generator) {
  const auto dtype = self.scalar_type();
  // ATen's default ranges: what the type holds exactly.
  const int64_t end = dtype == at::kBool       ? 2
                      : dtype == at::kByte     ? 256
                      : dtype == at::kChar     ? 128
                      : dtype == at::kShort    ? 32768
                      : dtype == at::kInt      ? (int64_t{1} << 31)
                      : dtype == at::kHalf     ? 2049
                      : dtype == at::kBFloat16 ? 257
                      : dtype == at::kFloat    ? (int64_t{1} << 24) + 1
                                               : (int64_t{1} << 53);
  return random_from_to_(self, 0, end, std::move(generator));
}

template <
    at::Tensor& (*kFill)(at::Tensor&, double, double, Generator),
    int kFrom>
at::Tensor filled_like(
    const at::Tensor& self,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format) {
  auto out =
      at::empty_like(self, dtype, layout, device, pin_memory, memory_format);
  return kFill(out, kFrom, 1, std::nullopt);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(
    const at::Tensor& input, double p, std::optional<bool> train) {
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  const bool drops = train.value_or(true);
  bernoulli_(mask, drops ? 1 - p : 1, std::nullopt);
  const double scale = !drops ? 1.0 : p == 1 ? 0.0 : 1.0 / (1.0 - p);
  return {at::mul(at::mul(input, mask), scale), mask};
}

}  // namespace

void seed_random(uint64_t seed) { random_state().seed(seed); }

uint64_t next_random_seed() { return random_bits(random_state().next(), 0); }

void register_random(torch::Library& aten) {
  aten.impl("uniform_", &uniform_);
  aten.impl("normal_", &normal_);
  aten.impl("exponential_", &exponential_);
  aten.impl("bernoulli_.float", &bernoulli_);
  aten.impl("bernoulli_.Tensor", &bernoulli_by_tensor_);
  aten.impl("bernoulli", &bernoulli);
  aten.impl("bernoulli.p", &bernoulli_by_number);
  aten.impl("random_", &random_);
  aten.impl("random_.to", &random_to_);
  aten.impl("random_.from", &random_from_to_);
  aten.impl("rand_like", &filled_like<&uniform_, 0>);
  aten.impl("randn_like", &filled_like<&normal_, 0>);
  aten.impl("native_dropout", &native_dropout);
}

}  // namespace tessera::detail
