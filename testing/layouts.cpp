#include "testing/layouts.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <utility>

#include "tessera/distribute.h"
#include "tessera/shard_math.h"

namespace tessera::testing {

namespace {

// A number for each element of `like`: what `make` makes of one that is uniform
// in [0, 1).
template <typename Make>
at::Tensor drawn(
    const at::Tensor& like, std::mt19937_64& random, const Make& make) {
  auto numbers = at::empty(like.sizes(), at::kDouble);
  std::uniform_real_distribution<double> draw(0, 1);
  auto* data = numbers.data_ptr<double>();
  std::generate(
      data, data + numbers.numel(), [&] { return make(draw(random)); });
  return numbers;
}

bool is_half(c10::ScalarType dtype) {
  return dtype == c10::kHalf || dtype == c10::kBFloat16;
}

// Multiples by powers of two, which are exact, that add up to one.
std::vector<double> exact_multipliers(int64_t count) {
  std::vector<double> factors(count, 0);
  factors[0] = 1;
  double scale = 2;
  for (int64_t i = 1; i + 1 < count; i += 2, scale *= 2) {
    factors[i] = scale;
    factors[i + 1] = -scale;
  }
  if (count % 2 == 0) {
    factors[0] = 2;
    factors[count - 1] = -1;
  }
  return factors;
}

std::vector<at::Tensor> sum_terms(
    const at::Tensor& value, int64_t count, std::mt19937_64& random) {
  std::vector<at::Tensor> terms;
  if (is_half(value.scalar_type())) {
    for (const double factor : exact_multipliers(count)) {
      terms.push_back(value * factor);
    }
    return terms;
  }
  auto rest = value.clone();
  for (int64_t i = 1; i < count; ++i) {
    const double scale = 10.0 * static_cast<double>(i);
    auto term = drawn(value, random, [&](double u) {
                  return std::nearbyint((u - 0.4) * (scale * 1024)) / 1024;
                }).to(value.scalar_type());
    rest = rest - term;
    terms.push_back(std::move(term));
  }
  terms.insert(terms.begin() + (count / 2), rest);
  return terms;
}

std::vector<at::Tensor> product_terms(
    const at::Tensor& value, int64_t count, std::mt19937_64& random) {
  std::vector<at::Tensor> terms;
  auto rest = value.clone();
  for (int64_t i = 1; i < count; ++i) {
    // Powers of two, so that division is exact.
    auto term = drawn(value, random, [](double u) {
                  return u < 0.5 ? -2.0 : 0.5;
                }).to(value.scalar_type());
    rest = rest / term;
    terms.push_back(std::move(term));
  }
  terms.push_back(rest);
  return terms;
}

// One term holds each element; the others hold less (or more, by the sign).
std::vector<at::Tensor> extremum_terms(
    const at::Tensor& value,
    int64_t count,
    double sign,
    std::mt19937_64& random) {
  const auto owner = drawn(value, random, [&](double u) {
                       return std::floor(u * static_cast<double>(count));
                     }).to(at::kLong);
  std::vector<at::Tensor> terms;
  for (int64_t i = 0; i < count; ++i) {
    at::Tensor other;
    if (value.scalar_type() == c10::kBool) {
      other = at::full(value.sizes(), sign > 0, at::kBool);
    } else {
      other = value + drawn(value, random, [&](double u) {
                        return u * (3 * sign) + sign;
                      }).to(value.scalar_type());
    }
    terms.push_back(at::where(owner == i, value, other));
  }
  return terms;
}

at::Tensor cut(
    at::Tensor value,
    SizesRef sizes,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t position) {
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    const auto range = local_range(sizes[d], d, mesh, placements, position);
    value = value.narrow(d, range.begin, range.size);
  }
  return value;
}

struct Tolerance {
  double relative;
  double absolute;
};

Tolerance tolerance_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kDouble:
    case c10::kComplexDouble:
      return {1e-9, 1e-9};
    case c10::kFloat:
    case c10::kComplexFloat:
      return {1e-4, 1e-4};
    case c10::kHalf:
      return {1e-2, 1e-2};
    case c10::kBFloat16:
      return {5e-2, 5e-2};
    default:
      return {0, 0};
  }
}

}  // namespace

bool can_be_pending(c10::ScalarType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return dtype != c10::kBool;
    case ReduceOp::Avg:
    case ReduceOp::Product:
      return (c10::isFloatingType(dtype) && !is_half(dtype)) ||
             (c10::isComplexType(dtype) && op == ReduceOp::Avg);
    case ReduceOp::Min:
    case ReduceOp::Max:
      return !c10::isComplexType(dtype);
  }
  return false;
}

std::vector<at::Tensor> reduction_terms(
    const at::Tensor& value, ReduceOp op, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  switch (op) {
    case ReduceOp::Sum:
      return sum_terms(value, count, random);
    case ReduceOp::Avg:
      return sum_terms(value * count, count, random);
    case ReduceOp::Product:
      return product_terms(value, count, random);
    case ReduceOp::Min:
      return extremum_terms(value, count, 1, random);
    case ReduceOp::Max:
      return extremum_terms(value, count, -1, random);
  }
  return {};
}

std::vector<at::Tensor> shards_of(
    const at::Tensor& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    uint64_t seed) {
  std::vector<at::Tensor> shards;
  // By mesh dimension and path: ranks share the terms that lead to theirs.
  std::map<std::pair<int64_t, uint64_t>, std::vector<at::Tensor>> known;
  const auto count = static_cast<int64_t>(mesh.all_ranks().size());
  for (int64_t position = 0; position < count; ++position) {
    at::Tensor term = value;
    uint64_t path = seed;
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (!placements[m].is_partial()) {
        continue;
      }
      const int64_t at = mesh.coordinate(position, m);
      auto& terms = known[{m, path}];
      if (terms.empty()) {
        terms = reduction_terms(
            term, placements[m].reduce_op(), mesh.size(m), path);
      }
      term = terms[at];
      path = path * 31 + static_cast<uint64_t>(at) + 1;
    }
    shards.push_back(
        cut(term, value.sizes(), mesh, placements, position).clone());
  }
  return shards;
}

DTensor laid_out(
    const at::Tensor& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    uint64_t seed) {
  const bool pending = std::any_of(
      placements.begin(), placements.end(), [](const Placement& placement) {
        return placement.is_partial();
      });
  if (!pending) {
    return distribute_tensor(value, mesh, placements);
  }
  const auto shards = shards_of(value, mesh, placements, seed);
  std::vector<at::Tensor> here;
  for (const int64_t position : mesh.local_positions()) {
    // As the strides below say.
    here.push_back(shards[position].contiguous());
  }
  if (here.empty()) {
    here.push_back(value);  // outside the mesh, where it only shows its kind
  }
  FromLocalOptions options;
  options.shape = Sizes(value.sizes());
  options.stride = row_major_strides(value.sizes());
  return DTensor::from_local(here, mesh, placements, options);
}

std::vector<Placement> possible_placements(
    const at::Tensor& value, uint64_t seed) {
  std::vector<Placement> placements{Replicate()};
  for (int64_t d = 0; d < value.dim(); ++d) {
    placements.push_back(Shard(d));
  }
  if (can_be_pending(value.scalar_type(), ReduceOp::Sum)) {
    placements.push_back(Partial(ReduceOp::Sum));
  }
  const ReduceOp others[] = {
      ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min, ReduceOp::Product};
  const ReduceOp other = others[seed % 4];
  if (can_be_pending(value.scalar_type(), other)) {
    placements.push_back(Partial(other));
  }
  return placements;
}

std::vector<Placements> layouts(
    const DeviceMesh& mesh, int64_t ndim, std::optional<ReduceOp> pending) {
  std::vector<Placement> choices{Replicate()};
  for (int64_t d = 0; d < ndim; ++d) {
    choices.push_back(Shard(d));
  }
  if (pending.has_value()) {
    choices.push_back(Partial(*pending));
  }
  std::vector<Placements> all{{}};
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    std::vector<Placements> longer;
    for (const auto& start : all) {
      for (const auto& choice : choices) {
        longer.push_back(start);
        longer.back().push_back(choice);
      }
    }
    all = std::move(longer);
  }
  return all;
}

Placements random_layout(
    const at::Tensor& value, const DeviceMesh& mesh, std::mt19937_64& random) {
  const auto choices = possible_placements(value, random());
  Placements layout;
  const Placement* pending = nullptr;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const Placement* choice = &choices[random() % choices.size()];
    if (choice->is_partial()) {
      // One kind of reduction a tensor: those of different kinds need not
      // commute.
      pending = pending == nullptr ? choice : pending;
      choice = pending;
    }
    layout.push_back(*choice);
  }
  return layout;
}

std::vector<std::vector<Placements>> layouts_to_try(
    at::TensorList values,
    const DeviceMesh& mesh,
    size_t limit,
    uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<Placement>> choices;
  size_t combinations = 1;
  for (const auto& value : values) {
    choices.push_back(possible_placements(value, random()));
    combinations *= choices.back().size();
  }
  std::vector<std::vector<Placements>> layouts;
  if (mesh.ndim() == 1 && combinations <= limit) {
    for (size_t number = 0; number < combinations; ++number) {
      size_t rest = number;
      auto& layout = layouts.emplace_back();
      for (const auto& choice : choices) {
        layout.push_back({choice[rest % choice.size()]});
        rest /= choice.size();
      }
    }
    return layouts;
  }
  layouts.emplace_back(values.size(), Placements(mesh.ndim(), Replicate()));
  while (layouts.size() < limit) {
    auto& layout = layouts.emplace_back();
    for (const auto& value : values) {
      layout.push_back(random_layout(value, mesh, random));
    }
  }
  return layouts;
}

c10::ScalarType coarser(c10::ScalarType a, c10::ScalarType b) {
  return tolerance_of(a).relative >= tolerance_of(b).relative ? a : b;
}

std::string mesh_name(c10::IntArrayRef shape) {
  std::string name;
  for (const int64_t size : shape) {
    name += (name.empty() ? "" : "x") + std::to_string(size);
  }
  return name;
}

std::string difference(
    const at::Tensor& actual,
    const at::Tensor& expected,
    c10::ScalarType precision) {
  std::ostringstream text;
  if (actual.scalar_type() != expected.scalar_type() ||
      actual.sizes() != expected.sizes()) {
    text << "expected " << expected.scalar_type() << expected.sizes()
         << ", got " << actual.scalar_type() << actual.sizes();
    return text.str();
  }
  auto [relative, absolute] = tolerance_of(expected.scalar_type());
  if (relative > 0) {
    const auto loose = tolerance_of(precision);
    relative = std::max(relative, loose.relative);
    absolute = std::max(absolute, loose.absolute);
  }
  // Most are the same bits, which is seen sooner.
  if (at::equal(actual, expected) ||
      at::allclose(actual, expected, relative, absolute, true)) {
    return "";
  }
  text << "expected\n" << expected << "\ngot\n" << actual;
  return text.str();
}

}  // namespace tessera::testing
