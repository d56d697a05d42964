#include "testing/samples.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace tessera::testing {

namespace {

// Distinct numbers that fill (0, 1) evenly, in an order that the seed decides.
// Every seed also shifts them a little, so that two tensors have none in
// common.
std::vector<double> spread(int64_t count, std::mt19937_64& random) {
  std::vector<double> values(count);
  const double shift =
      0.1 + 0.8 * std::uniform_real_distribution<double>()(random);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = (static_cast<double>(i) + shift) / static_cast<double>(count);
  }
  std::shuffle(values.begin(), values.end(), random);
  return values;
}

double placed(double unit, Values values) {
  switch (values) {
    case Values::Signed:
    case Values::Ascending:
      // A gap in the middle keeps away from 0.
      return unit < 0.5 ? -2 + 3.9 * unit : 0.05 + 3.9 * (unit - 0.5);
    case Values::Positive:
      return 0.2 + 1.8 * unit;
    case Values::Unit:
      return -0.9 + 1.8 * unit;
    case Values::AboveOne:
      return 1.1 + 1.9 * unit;
    case Values::Probability:
      return 0.05 + 0.9 * unit;
    case Values::Integers:
    case Values::Indices:
    case Values::Permutation:
    case Values::Offsets:
    case Values::Bound:
      break;
  }
  return unit;
}

at::Tensor whole_numbers(
    int64_t count, const TensorRecipe& recipe, std::mt19937_64& random) {
  auto numbers = at::arange(count, at::kLong);
  auto* data = numbers.data_ptr<int64_t>();
  if (recipe.values == Values::Permutation) {
    std::shuffle(data, data + count, random);
    return numbers;
  }
  if (recipe.values == Values::Bound) {
    return numbers.fill_(recipe.bound);
  }
  const int64_t low = recipe.values == Values::Integers ? -recipe.bound : 0;
  const int64_t high =
      recipe.values == Values::Integers ? recipe.bound : recipe.bound - 1;
  std::uniform_int_distribution<int64_t> draw(low, high);
  std::generate(data, data + count, [&] { return draw(random); });
  if (recipe.values == Values::Offsets && count > 0) {
    std::sort(data, data + count);
    data[0] = 0;
  }
  return numbers;
}

at::Tensor real_numbers(int64_t count, Values values, std::mt19937_64& random) {
  auto numbers = at::empty({count}, at::kDouble);
  const auto units = spread(count, random);
  std::transform(
      units.begin(), units.end(), numbers.data_ptr<double>(), [&](double unit) {
        // Few binary digits: terms of a sum add up exactly, in any order.
        return std::round(placed(unit, values) * 1024) / 1024;
      });
  return numbers;
}

bool is_whole(Values values) {
  return values == Values::Integers || values == Values::Indices ||
         values == Values::Permutation || values == Values::Offsets ||
         values == Values::Bound;
}

at::Tensor numbers_of(
    int64_t count, const TensorRecipe& recipe, std::mt19937_64& random) {
  if (is_whole(recipe.values)) {
    return whole_numbers(count, recipe, random).to(recipe.dtype);
  }
  auto real = real_numbers(count, recipe.values, random);
  if (c10::isComplexType(recipe.dtype)) {
    return at::complex(real, real_numbers(count, recipe.values, random))
        .to(recipe.dtype);
  }
  return real.to(recipe.dtype);
}

// The same values, in memory last dimension first with every other place free.
at::Tensor with_gaps(const at::Tensor& tensor) {
  std::vector<int64_t> reversed(tensor.sizes().rbegin(), tensor.sizes().rend());
  reversed.push_back(2);
  std::vector<int64_t> order(tensor.dim());
  std::iota(order.rbegin(), order.rend(), 0);
  auto result = at::empty(reversed, tensor.options()).select(-1, 0);
  result = result.permute(order);
  result.copy_(tensor);
  return result;
}

// `out=` tensors of the shapes and dtypes that the op gives, with other values.
void add_outs(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  torch::jit::Stack trial(stack);
  const auto& arguments = op.schema().arguments();
  std::vector<size_t> outs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].is_out()) {
      outs.push_back(i);
    }
  }
  if (outs.empty()) {
    return;
  }
  // The functional overload would tell, but its name is not always the same.
  std::exception_ptr error;
  for (const auto dtype :
       {at::kDouble, at::kFloat, at::kLong, at::kBool, at::kComplexDouble}) {
    trial = stack;
    for (size_t k = 0; k < outs.size(); ++k) {
      // Second results of the ops in the table are indices.
      trial[outs[k]] = at::empty({0}, k == 0 ? dtype : at::ScalarType::Long);
    }
    const auto results = std::vector<c10::IValue>(
        trial.begin() + static_cast<int64_t>(outs[0]), trial.end());
    try {
      op.callBoxed(&trial);
    } catch (const c10::Error&) {
      error = std::current_exception();
      continue;
    }
    for (size_t k = 0; k < outs.size(); ++k) {
      const auto& shape = results[outs[k] - outs[0]].toTensor();
      stack[outs[k]] = at::full_like(shape, 1, at::MemoryFormat::Contiguous);
    }
    return;
  }
  std::rethrow_exception(error);
}

}  // namespace

TensorRecipe TensorRecipe::as(c10::ScalarType other) const {
  TensorRecipe recipe = *this;
  recipe.dtype = other;
  return recipe;
}

TensorRecipe TensorRecipe::with(Values other) const {
  TensorRecipe recipe = *this;
  recipe.values = other;
  return recipe;
}

TensorRecipe TensorRecipe::strided() const {
  TensorRecipe recipe = *this;
  recipe.is_strided = true;
  return recipe;
}

at::Tensor TensorRecipe::make(uint64_t seed) const {
  std::mt19937_64 random(seed);
  const int64_t count = std::accumulate(
      sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  auto tensor = numbers_of(count, *this, random).view(sizes);
  if (values == Values::Ascending) {
    tensor = std::get<0>(tensor.sort(-1));
  }
  return is_strided ? with_gaps(tensor) : tensor;
}

TensorRecipe t(Sizes sizes) { return {std::move(sizes)}; }

TensorRecipe floats(Sizes sizes) { return {std::move(sizes), c10::kFloat}; }

TensorRecipe ints(Sizes sizes, int64_t bound) {
  return {std::move(sizes), c10::kLong, Values::Integers, bound};
}

TensorRecipe indices(Sizes sizes, int64_t bound) {
  return {std::move(sizes), c10::kLong, Values::Indices, bound};
}

TensorRecipe offsets(int64_t count, int64_t bound) {
  return {{count}, c10::kLong, Values::Offsets, bound};
}

TensorRecipe bools(Sizes sizes) {
  return {std::move(sizes), c10::kBool, Values::Indices, 2};
}

c10::IValue SampleArg::make(uint64_t seed) const {
  if (!optional_tensors_.empty()) {
    c10::List<std::optional<at::Tensor>> list;
    for (size_t i = 0; i < optional_tensors_.size(); ++i) {
      std::optional<at::Tensor> element;
      if (optional_tensors_[i].has_value()) {
        element = optional_tensors_[i]->make(seed + 7919 * (i + 1));
      }
      list.push_back(std::move(element));
    }
    return list;
  }
  if (is_list_) {
    c10::List<at::Tensor> list;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      list.push_back(tensors_[i].make(seed + 7919 * (i + 1)));
    }
    return list;
  }
  if (!tensors_.empty()) {
    return tensors_[0].make(seed);
  }
  return plain_;
}

SampleArg SampleArg::as(c10::ScalarType floating) const {
  const auto convert = [floating](TensorRecipe& tensor) {
    if (c10::isFloatingType(tensor.dtype)) {
      tensor.dtype = floating;
    }
  };
  SampleArg converted = *this;
  std::for_each(converted.tensors_.begin(), converted.tensors_.end(), convert);
  for (auto& tensor : converted.optional_tensors_) {
    if (tensor.has_value()) {
      convert(*tensor);
    }
  }
  return converted;
}

SampleArg dims(std::vector<int64_t> list) {
  return SampleArg(c10::IValue(std::move(list)));
}

SampleArg none() { return SampleArg(c10::IValue()); }

SampleArg tensors(std::vector<TensorRecipe> list) {
  return SampleArg(std::move(list));
}

SampleArg optional_tensors(std::vector<std::optional<TensorRecipe>> list) {
  return SampleArg(std::move(list));
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

namespace {

c10::OperatorName operator_name(const std::string& op) {
  const size_t dot = op.find('.');
  return dot == std::string::npos
             ? c10::OperatorName(op, "")
             : c10::OperatorName(op.substr(0, dot), op.substr(dot + 1));
}

}  // namespace

bool op_exists(const std::string& op) {
  return c10::Dispatcher::singleton().findSchema(operator_name(op)).has_value();
}

c10::OperatorHandle Sample::handle() const {
  const auto name = operator_name(op);
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.name.c_str(), name.overload_name.c_str());
}

Sample Sample::as(c10::ScalarType floating) const {
  Sample converted = *this;
  for (auto& arg : converted.args) {
    arg = arg.as(floating);
  }
  converted.note += std::string(note.empty() ? "" : ", ") + toString(floating);
  return converted;
}

torch::jit::Stack Sample::arguments(uint64_t seed) const {
  const auto op_handle = handle();
  const auto& schema = op_handle.schema().arguments();
  const uint64_t base = std::hash<std::string>()(op + note) ^ (seed * 104729);
  torch::jit::Stack stack;
  for (size_t i = 0; i < schema.size(); ++i) {
    if (i < args.size()) {
      stack.push_back(args[i].make(base + 31 * i));
    } else if (schema[i].default_value().has_value()) {
      stack.push_back(*schema[i].default_value());
    } else {
      TORCH_CHECK(schema[i].is_out(), str(), " lacks ", schema[i].name());
      stack.emplace_back();
    }
  }
  add_outs(op_handle, stack);
  return stack;
}

std::string Sample::str() const {
  return note.empty() ? op : op + " (" + note + ")";
}

void add_with_variants(Samples& samples, Sample sample) {
  samples.push_back(sample);
  const size_t dot = sample.op.find('.');
  const std::string name = sample.op.substr(0, dot);
  const std::string overload =
      dot == std::string::npos ? "" : sample.op.substr(dot);
  Sample in_place = sample;
  in_place.op = name + "_" + overload;
  if (op_exists(in_place.op)) {
    samples.push_back(in_place);
  }
  for (const auto& suffix : {std::string(".out"), overload + "_out"}) {
    Sample out = sample;
    out.op = name + suffix;
    // "add.Tensor" writes as "add.out", unless there is an "add.Tensor_out".
    const bool own = suffix == overload + "_out";
    const bool shared = suffix == ".out" &&
                        (overload.empty() || overload == ".Tensor") &&
                        !op_exists(name + overload + "_out");
    if (op_exists(out.op) && !suffix.starts_with('_') && (own || shared)) {
      samples.push_back(out);
    }
  }
}

const std::vector<Sample>& all_samples() {
  static const Samples* const samples = [] {
    auto* all = new Samples;
    add_unary_samples(*all);
    add_binary_samples(*all);
    add_ternary_samples(*all);
    add_matrix_samples(*all);
    add_composite_samples(*all);
    add_reduction_samples(*all);
    add_view_samples(*all);
    add_join_samples(*all);
    add_copy_samples(*all);
    add_index_samples(*all);
    add_nn_samples(*all);
    add_layer_samples(*all);
    add_linalg_samples(*all);
    add_bin_samples(*all);
    add_part_samples(*all);
    add_bag_samples(*all);
    return all;
  }();
  return *samples;
}

}  // namespace tessera::testing
