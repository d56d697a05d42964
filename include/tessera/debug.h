// Debugging: which collectives a program issues and why, how the layout of an
// op's result was chosen, and which rank holds which part of a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/export.h"
#include "tessera/spec.h"

namespace torch::nn {
class Module;
}

namespace tessera {

// The collectives of one kind that one op issued for arguments of one layout.
struct CommRecord {
  std::string op;          // "aten::mm"; "" outside an op
  bool backward;           // issued during a backward pass
  std::string collective;  // "all_reduce", "all_gather", ...
  int64_t group_size;      // how many ranks took part in each
  int64_t count;
  // What this process's rank sent to others (in a simulated world: what rank 0
  // sent), by the formulas of docs/debugging.md.
  int64_t bytes;
  // The ModuleScopes that were open when the op ran, joined by dots: "mlp.fc1".
  // In a backward pass those that were open when the op it differentiates ran;
  // for the gradient of a parameter, the parameter's name.
  std::string module;
  // The layouts of the op's distributed tensors: "Float[8, 5] on [S(0)], ...".
  std::string arguments;
  // Bytes by rank: of all ranks of a simulated world, of this process's rank
  // otherwise.
  std::map<int64_t, int64_t> bytes_by_rank;
};

// Names a part of a model while it is alive, for CommDebugMode. Scopes of a
// thread nest; the innermost ends first.
//
//   ts::ModuleScope scope("fc1");
//   x = fc1(x);
class TESSERA_API ModuleScope {
 public:
  explicit ModuleScope(std::string_view name);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;
};

// Names a parameter in the records of its gradient's reduction, for as long as
// a CommDebugMode is alive.
TESSERA_API void name_parameter(const at::Tensor& parameter, std::string name);

// A scope that counts the collectives which this process issues while it is
// alive, on any thread, forward and backward. Nested scopes each count. A
// simulated collective of all ranks counts once, as it does on each process of
// a real world; groups of one rank send nothing and are not counted. Safe to
// read while other threads communicate.
class TESSERA_API CommDebugMode {
 public:
  CommDebugMode();
  // The same; records of a gradient's reduction name the module's parameter.
  explicit CommDebugMode(const torch::nn::Module& module);
  ~CommDebugMode();
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  int64_t get_total_counts() const;
  int64_t get_total_bytes() const;
  // By collective: {"all_reduce": 2}. Those that were not issued are absent.
  std::map<std::string, int64_t> get_comm_counts() const;
  std::map<std::string, int64_t> get_comm_bytes() const;
  // By rank: of all ranks of a simulated world, of this process's rank
  // otherwise.
  std::map<int64_t, int64_t> get_comm_bytes_by_rank() const;
  // By op, module, pass, collective, group size and layouts of the arguments,
  // in the order of their first appearance.
  std::vector<CommRecord> get_records() const;

  // A table of get_records() and a line of totals, as text.
  std::string generate_comm_debug_tracing_table() const;

  // Forgets what was counted so far.
  void reset();

 private:
  class Counter;
  std::unique_ptr<Counter> counter_;
};

// Prints the table.
TESSERA_API std::ostream& operator<<(
    std::ostream& out, const CommDebugMode& mode);

// Explains how the layout of a call is chosen, as text: the rows of the op's
// rule, the cost of each, and the choice. The op is named "aten::mm", "mm" or
// "aten::add.Tensor"; without an overload name, the first overload that takes
// the arguments is used. `arguments` are in the order of the schema; trailing
// ones may be omitted if they have defaults. Nothing is computed or sent, so
// tensors with meta shards work too.
// An op that is composed of others, by libtorch or by this library, is run on
// tensors without data, and each op that it runs by a rule is explained.
// Throws c10::ValueError if there is no such op, the arguments do not fit or
// none of them is distributed; otherwise what the call itself would throw.
TESSERA_API std::string explain(
    std::string_view op, c10::ArrayRef<c10::IValue> arguments);

// As above, from layouts instead of tensors. `specs` are those of the tensor
// arguments and `others` are the remaining arguments, both in the order of the
// schema. A nullptr stands for an optional tensor that is not given; the last
// list of tensors takes all remaining specs.
TESSERA_API std::string explain(
    std::string_view op,
    c10::ArrayRef<SpecPtr> specs,
    c10::ArrayRef<c10::IValue> others = {});

// Explains a function: each op that it runs and the collectives that it issues.
// `call` is called once, with tensors that have the layouts of `tensors` and no
// data. `name` is used in the text.
// Throws what `call` throws.
TESSERA_API std::string explain(
    const std::string& name,
    const std::function<void(at::TensorList)>& call,
    at::TensorList tensors);

// Draws which rank holds which part of a tensor. Tensors of one or two
// dimensions are drawn as a grid of blocks labeled with ranks; others, and
// grids that are too wide, as a table of index ranges. "0,2" and "0-3" are
// replicas of a block, "sum(0,1)" are terms of a pending sum. Ranks that hold
// nothing are listed below. Does not communicate. Throws c10::TypeError for a
// plain tensor.
TESSERA_API std::string visualize_sharding(const at::Tensor& tensor);
TESSERA_API std::string visualize_sharding(const Spec& spec);

// The same as an SVG document, with blocks drawn to scale and colored by rank.
// A panel shows the last two dimensions; there is one panel for each block of
// the leading dimensions.
TESSERA_API std::string visualize_sharding_svg(const at::Tensor& tensor);
TESSERA_API std::string visualize_sharding_svg(const Spec& spec);

}  // namespace tessera
