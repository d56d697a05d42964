// Calls of ops, as data: the one table from which the oracle test, the rule
// validator and the documentation of ops follow. A sample names an overload and
// says what its arguments are; adding an op is one line in a samples_*.cpp.
//
// Sizes are chosen such that over 2, 3 and 4 ranks there are even, uneven and
// empty shards; values such that no result hangs on a tie or a kink.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/spec.h"

namespace tessera::testing {

// Where the values of a sample tensor lie.
enum class Values : uint8_t {
  Signed,       // -2 to 2, distinct, none near 0
  Positive,     // 0.2 to 2, distinct
  Unit,         // -0.9 to 0.9, distinct
  AboveOne,     // 1.1 to 3, distinct
  Probability,  // 0.05 to 0.95, distinct
  Integers,     // whole numbers from -bound to bound, with repetitions
  Indices,      // whole numbers from 0 to bound - 1, with repetitions
  Permutation,  // every whole number from 0 to n - 1 once
  Offsets,      // 0, then ascending whole numbers below bound
  Bound,        // the bound everywhere
  Ascending,    // -2 to 2, distinct, sorted along the last dimension
};

// A tensor to be made: t({4, 6}).positive().as(at::kFloat).
struct TensorRecipe {
  Sizes sizes;
  c10::ScalarType dtype = c10::kDouble;
  Values values = Values::Signed;
  int64_t bound = 5;
  // Dimensions stand in memory in reverse order, with a gap between elements.
  bool is_strided = false;

  TensorRecipe as(c10::ScalarType other) const;
  TensorRecipe with(Values other) const;
  TensorRecipe positive() const { return with(Values::Positive); }
  TensorRecipe unit() const { return with(Values::Unit); }
  TensorRecipe strided() const;

  // The tensor. The same recipe and seed give the same values.
  at::Tensor make(uint64_t seed) const;
};

// Doubles, so that a wrong digit is not taken for rounding.
TensorRecipe t(Sizes sizes);
TensorRecipe floats(Sizes sizes);
// int64 from -bound to bound.
TensorRecipe ints(Sizes sizes, int64_t bound = 5);
// int64 from 0 to bound - 1.
TensorRecipe indices(Sizes sizes, int64_t bound);
// int64: where `count` bags of up to `bound` entries in all begin.
TensorRecipe offsets(int64_t count, int64_t bound);
TensorRecipe bools(Sizes sizes);

// An argument of a sample: a tensor, a list of tensors, or a plain value.
class SampleArg {
 public:
  SampleArg(TensorRecipe tensor) : tensors_{std::move(tensor)} {}
  SampleArg(std::vector<TensorRecipe> list)
      : tensors_(std::move(list)), is_list_(true) {}
  SampleArg(std::vector<std::optional<TensorRecipe>> list)
      : optional_tensors_(std::move(list)), is_list_(true) {}
  SampleArg(c10::IValue plain) : plain_(std::move(plain)) {}
  SampleArg(int number) : plain_(int64_t{number}) {}
  SampleArg(double number) : plain_(number) {}
  SampleArg(bool flag) : plain_(flag) {}
  SampleArg(const char* text) : plain_(std::string(text)) {}
  SampleArg(c10::ScalarType dtype) : plain_(dtype) {}

  c10::IValue make(uint64_t seed) const;
  // The same with floating-point tensors of another dtype.
  SampleArg as(c10::ScalarType floating) const;

 private:
  std::vector<TensorRecipe> tensors_;
  std::vector<std::optional<TensorRecipe>> optional_tensors_;
  bool is_list_ = false;
  c10::IValue plain_;
};

// A list of integers, nothing, and a list of tensors, as arguments.
SampleArg dims(std::vector<int64_t> list);
SampleArg none();
SampleArg tensors(std::vector<TensorRecipe> list);
// A list in which tensors may be missing: what x[i, :, j] hands to index.
SampleArg optional_tensors(std::vector<std::optional<TensorRecipe>> list);

struct Sample {
  // "aten::sum.dim_IntList"
  std::string op;
  // By position; the ones left out have the schema's default. `out=` tensors
  // are always left out: they follow from the results.
  std::vector<SampleArg> args;
  std::string note = {};
  // The backward pass is left out (a derivative that is itself a sample).
  bool forward_only = false;
  // An op that writes may refuse every layout but Replicate. Without it an op
  // may refuse to write a tensor with a pending reduction, and nothing else.
  bool refuses_shards = false;
  // Part of the text with which the op may be refused in any layout: it, or
  // its derivative, needs an op whose result's shape depends on values.
  std::string refusal = {};

  // The same call of floating-point tensors of another dtype.
  Sample as(c10::ScalarType floating) const;

  c10::OperatorHandle handle() const;
  // All arguments of the schema, plain. Different seeds give other values.
  torch::jit::Stack arguments(uint64_t seed = 0) const;
  // "aten::add.Tensor (broadcast)"
  std::string str() const;
};

// Every sample, grouped by family.
const std::vector<Sample>& all_samples();

// Which arguments of the schema the op writes, in place or as `out=`.
bool is_written(const c10::Argument& argument);

using Samples = std::vector<Sample>;
void add_unary_samples(Samples& samples);
void add_binary_samples(Samples& samples);
void add_ternary_samples(Samples& samples);
void add_matrix_samples(Samples& samples);
void add_composite_samples(Samples& samples);
void add_reduction_samples(Samples& samples);
void add_view_samples(Samples& samples);
void add_join_samples(Samples& samples);
void add_copy_samples(Samples& samples);
void add_index_samples(Samples& samples);
void add_nn_samples(Samples& samples);
void add_layer_samples(Samples& samples);
void add_convolution_samples(Samples& samples);
void add_linalg_samples(Samples& samples);
void add_bin_samples(Samples& samples);
void add_part_samples(Samples& samples);
void add_bag_samples(Samples& samples);

// Whether the dispatcher knows "aten::exp_" or "aten::exp.out".
bool op_exists(const std::string& op);

// Adds the sample under `op` and, where ATen has them, its in-place and `out=`
// variants ("aten::exp" also as "aten::exp_" and "aten::exp.out").
void add_with_variants(Samples& samples, Sample sample);

}  // namespace tessera::testing
