#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>
#include <limits>

#include "dispatch/random_stream.h"
#include "dispatch/tensor.h"
#include "kernels/random/random_fill.h"
#include "ops/random.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

void check_fillable(const char* op, const at::Tensor& self) {
  TORCH_CHECK(
      is_dtensor(self),
      "[",
      op,
      "] a plain tensor is filled from distributed arguments");
  const auto& meta = distributed_meta(self);
  begin_write(self, op, /*overwrites=*/true);
  for (const auto& placement : meta.spec->placements) {
    TORCH_CHECK(
        placement.kind() != Placement::Kind::MaskPartial,
        "[",
        op,
        "] cannot fill the terms of a pending reduction, ",
        to_string(meta.spec->placements),
        ": redistribute the tensor first");
  }
}

// Terms of a pending reduction that was filled with one value on every rank:
// the first rank keeps it where they add up or multiply.
void leave_to_the_first(
    const Spec& spec, int64_t position, const at::Tensor& shard) {
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    const Placement& placement = spec.placements[m];
    if (!placement.is_partial() || spec.mesh.coordinate(position, m) == 0) {
      continue;
    }
    if (placement.reduce_op() == ReduceOp::Sum) {
      shard.zero_();
    } else if (placement.reduce_op() == ReduceOp::Product) {
      shard.fill_(1);
    }
  }
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

// Fills the shards of `self` with the numbers of its elements. The parts of a
// complex number are drawn one by one.
void fill(
    const at::Tensor& self,
    const OptionalGenerator& generator,
    const RandomDraw& draw) {
  if (self.numel() == 0 || self.is_meta()) {
    return;
  }
  const auto& meta = distributed_meta(self);
  const RandomStream stream = next_stream(
      generator, self.device(), meta.spec->mesh, meta.spec->placements);
  const auto& shards = current_shards(self);
  for (size_t i = 0; i < shards.size(); ++i) {
    const at::Tensor& shard = shards[i];
    auto region = region_of(*meta.spec, meta.spec->mesh.local_positions()[i]);
    if (self.is_complex()) {
      region.push_back({0, 2, 2});
      fill_random_(at::view_as_real(shard), draw, stream, region);
    } else {
      fill_random_(shard, draw, stream, region);
    }
    leave_to_the_first(*meta.spec, meta.spec->mesh.local_positions()[i], shard);
  }
}

// `self`, filled by draw_of(its probe), which calls the op on that first.
template <typename DrawOf>
at::Tensor& filled(
    const char* op,
    at::Tensor& self,
    Integers integers,
    const OptionalGenerator& generator,
    const DrawOf& draw_of) {
  check_fillable(op, self);
  const RandomDraw draw = draw_of(probe_of(self, integers));
  fill(self, generator, draw);
  end_write(self, op);
  return self;
}

// How many integers from 0 on random_() draws from: those that the type holds
// exactly.
uint64_t default_range(at::ScalarType dtype) {
  uint64_t range = 2;
  if (c10::isFloatingType(dtype)) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, dtype, "aten.random_", [&] {
          range = (uint64_t{1} << std::numeric_limits<scalar_t>::digits) + 1;
        });
  } else if (dtype != at::kBool) {
    AT_DISPATCH_INTEGRAL_TYPES(dtype, "aten.random_", [&] {
      range = static_cast<uint64_t>(std::numeric_limits<scalar_t>::max()) + 1;
    });
  }
  return range;
}

}  // namespace

at::Tensor probe_of(const at::Tensor& self, Integers integers) {
  const auto dtype = self.scalar_type();
  const bool taken = c10::isFloatingType(dtype) ||
                     (integers == Integers::kTaken &&
                      c10::isIntegralType(dtype, /*includeBool=*/true));
  const int64_t elements = taken || self.numel() == 0 ? 0 : 1;
  return at::empty({elements}, at::TensorOptions().dtype(dtype));
}

const at::Generator& probe_generator() {
  static const at::Generator& generator =
      *new at::Generator(at::detail::createCPUGenerator());
  return generator;
}

at::Tensor& uniform_(
    at::Tensor& self, double from, double to, OptionalGenerator generator) {
  const auto draw = [&](const at::Tensor& probe) -> RandomDraw {
    probe.uniform_(from, to, probe_generator());
    return {.distribution = Distribution::kUniform, .a = from, .b = to};
  };
  return filled(
      "aten.uniform_.default", self, Integers::kRefused, generator, draw);
}

at::Tensor& normal_(
    at::Tensor& self, double mean, double std, OptionalGenerator generator) {
  const auto draw = [&](const at::Tensor& probe) -> RandomDraw {
    probe.normal_(mean, std, probe_generator());
    // The parts of a complex number share the variance.
    const double each = self.is_complex() ? std / std::sqrt(2.0) : std;
    return {.distribution = Distribution::kNormal, .a = mean, .b = each};
  };
  return filled(
      "aten.normal_.default", self, Integers::kRefused, generator, draw);
}

at::Tensor& exponential_(
    at::Tensor& self, double lambda, OptionalGenerator generator) {
  const auto draw = [&](const at::Tensor& probe) -> RandomDraw {
    probe.exponential_(lambda, probe_generator());
    return {.distribution = Distribution::kExponential, .a = lambda};
  };
  return filled(
      "aten.exponential_.default", self, Integers::kRefused, generator, draw);
}

at::Tensor& bernoulli_(
    at::Tensor& self, double p, OptionalGenerator generator) {
  const auto draw = [&](const at::Tensor& probe) -> RandomDraw {
    probe.bernoulli_(p, probe_generator());
    return {.distribution = Distribution::kBernoulli, .a = p};
  };
  return filled(
      "aten.bernoulli_.float", self, Integers::kTaken, generator, draw);
}

at::Tensor& random_from_to_(
    at::Tensor& self,
    int64_t from,
    std::optional<int64_t> to,
    OptionalGenerator generator) {
  const auto draw = [&](const at::Tensor& probe) -> RandomDraw {
    probe.random_(from, to, probe_generator());
    // Up to what the type holds; from the least int64 on, all there are.
    const uint64_t end = to.has_value() ? static_cast<uint64_t>(*to)
                         : from == std::numeric_limits<int64_t>::min()
                             ? static_cast<uint64_t>(from)
                             : default_range(self.scalar_type());
    return {
        .distribution = Distribution::kInteger,
        .from = from,
        .range = end - static_cast<uint64_t>(from)};
  };
  return filled("aten.random_", self, Integers::kTaken, generator, draw);
}

}  // namespace tessera::detail
