// Rules: which layouts an op accepts and returns, as data.
//
// A rule is a short table of rows. A row holds one placement for each tensor
// argument and each result and is valid on ONE mesh dimension: if the inputs
// have these placements, calling the op on the shards gives results with those
// placements. A rule is a pure function of shapes and plain arguments; it never
// sees ranks, costs or current layouts. The engine adds the all-replicate row,
// expands the rows over the mesh, estimates the cost of the redistributions
// that each needs, picks the cheapest and caches the choice.
//
// To add a rule for an op of your own:
//
//   // myops::scale_rows(Tensor x, Tensor s) -> Tensor
//   using namespace tessera;
//   register_rule("myops::scale_rows", {[](const OpCall& call) -> Rows {
//     return {{{Shard(0), Shard(0)}, {Shard(0)}},
//             {{Shard(1), Replicate()}, {Shard(1)}}};
//   }});
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checked_sizes.h"
#include "tessera/export.h"
#include "tessera/placement.h"
#include "tessera/shard_math.h"
#include "tessera/spec.h"

namespace tessera {

// A tensor argument as rules see it: global sizes, strides and dtype.
struct TensorArg {
  CheckedSizes sizes;
  CheckedSizes strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  // False where an optional tensor was not given; its placement is ignored.
  bool defined = false;

  int64_t dim() const { return static_cast<int64_t>(sizes.size()); }
};

// One call of an op: its schema, its tensor arguments and the plain ones.
class TESSERA_API OpCall {
 public:
  OpCall(
      const c10::FunctionSchema& schema,
      c10::ArrayRef<c10::IValue> arguments,
      std::vector<TensorArg> tensors);

  const c10::FunctionSchema& schema() const { return schema_; }

  // The tensor arguments in the order of the schema, lists laid out flat,
  // optional ones included. tensor() throws c10::IndexError if there are not as
  // many.
  size_t tensor_count() const { return tensors_.size(); }
  const TensorArg& tensor(size_t index) const;
  c10::ArrayRef<TensorArg> tensors() const { return tensors_; }

  // A plain argument by its name in the schema. All but has() and is_none()
  // throw c10::ValueError if the schema has no argument of that name; integer()
  // and boolean() throw c10::TypeError on a value of another type.
  bool has(std::string_view name) const;
  // True as well where the schema has no such argument.
  bool is_none(std::string_view name) const;
  const c10::IValue& argument(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  bool boolean(std::string_view name) const;
  // A list of integers, or one integer as a list; empty for None.
  CheckedSizes integers(std::string_view name) const;
  // A dimension of a tensor with `ndim` dimensions, made non-negative. Throws
  // c10::IndexError, in ATen's words, if it is out of range; a tensor of no
  // dimensions accepts -1 and 0 and gives 0.
  int64_t dimension(std::string_view name, int64_t ndim) const;
  // Likewise for a list; an empty or absent list means all dimensions. Of a
  // tensor without dimensions it is always empty. Throws c10::Error if one is
  // named twice.
  CheckedSizes dimensions(std::string_view name, int64_t ndim) const;

 private:
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> arguments_;
  std::vector<TensorArg> tensors_;
};

// What a row requires of the shards.
enum class Needs : uint8_t {
  Nothing,   // uneven and empty shards are fine
  NonEmpty,  // no rank may hold an empty shard (reductions without identity)
  Even,      // all shards of one size (merging dimensions in a view)
};

struct Row {
  // One placement a tensor argument (OpCall's order) and one a result; all
  // tensors of a list result share one.
  c10::SmallVector<Placement, 4> inputs;
  c10::SmallVector<Placement, 2> outputs;
  Needs needs = Needs::Nothing;
  // Where a sharded dimension is a sequence of equal units that must stay whole
  // (groups of channels): how many units there are, and `needs` is about them.
  // 0: its elements are.
  int64_t units = 0;

  Row(c10::SmallVector<Placement, 4> in,
      c10::SmallVector<Placement, 2> out,
      Needs shards = Needs::Nothing,
      int64_t whole_units = 0)
      : inputs(std::move(in)),
        outputs(std::move(out)),
        needs(shards),
        units(whole_units) {}

  // Of a dimension of this size, what `needs` is about.
  int64_t units_of(int64_t size) const { return units > 0 ? units : size; }

  // "S(0),R->S(0)"
  TESSERA_API std::string str() const;
};
using Rows = std::vector<Row>;

// "S(0),R->S(0) | R,S(1)->S(1)"
TESSERA_API std::string to_string(const Rows& rows);

// One shard: what local arguments may depend on, besides the call.
struct LocalView {
  const DeviceMesh& mesh;
  int64_t position;
  // The placements that were chosen, a list a tensor argument and a result.
  c10::ArrayRef<Placements> inputs;
  c10::ArrayRef<Placements> outputs;
  // The global sizes of the results.
  c10::ArrayRef<Sizes> output_sizes;

  CheckedSizes output_shape(size_t index) const {
    return local_shape(output_sizes[index], mesh, outputs[index], position);
  }
};

// An argument whose value on a rank differs from the global one: the sizes
// given to view or expand, the offset of a row-wise table.
struct LocalArgument {
  std::string name;
  std::function<c10::IValue(const OpCall&, const LocalView&)> value;
};

struct Rule {
  std::function<Rows(const OpCall&)> rows;

  // The global sizes of the results, for ops that have no meta kernel in C++.
  // Results are then contiguous. Unset, or where the list is empty: the meta
  // kernel is asked.
  std::function<std::vector<Sizes>(const OpCall&)> output_sizes = {};

  std::vector<LocalArgument> local_arguments = {};

  // The arguments whose values the op checks and may refuse: indices outside
  // their bounds, labels of no class, a zero to divide by. Where only one rank
  // may find such a value, the ranks tell each other how it went, 16 bytes
  // each, and all throw what one throws.
  std::vector<std::string> checked_arguments = {};
  // They are checked only where all tensors hold integers.
  bool checks_integers_only = false;

  // The arguments by which others are divided.
  std::vector<std::string> divisors = {};

  // Tensor arguments that the op takes in their own dtype where the others are
  // float, as pending sums of half kinds are: it reads only their layout, or
  // little of them.
  std::vector<std::string> own_dtype_arguments = {};

  // Numbers (Scalar and float arguments) do not change rows or shapes, so that
  // they stay out of the cache's key: a learning rate may change every step.
  bool ignores_numbers = false;

  // The result of a broadcasting, elementwise op: sizes, strides and order of
  // dimensions follow from the inputs where there is no meta kernel.
  bool elementwise = false;
};

// Adds a rule for `op` ("namespace::name" or "namespace::name.overload"). The
// op must be registered with the dispatcher, now or by the time it is called.
// Throws c10::ValueError if the op has a rule already. Thread-safe.
TESSERA_API void register_rule(std::string_view op, Rule rule);

}  // namespace tessera
