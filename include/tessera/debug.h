// Seeing what happens: which collectives a program issues and why, how the
// layout of an op's results came about, who holds which part of a tensor.
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

namespace tessera {

// The collectives of one kind that were issued on behalf of one op.
struct CommRecord {
  std::string op;          // "aten::mm"; "" outside an op
  bool backward;           // issued during a backward pass
  std::string collective;  // "all_reduce", "all_gather", ...
  int64_t group_size;      // how many ranks took part in each
  int64_t count;
  // What this process's rank sent to others (in a simulated world: what rank 0
  // sent), by the formulas of docs/debugging.md.
  int64_t bytes;
};

// A scope that counts the collectives which this process issues while it is
// alive, on any thread, forward and backward. Nested scopes each count. A
// simulated collective of all ranks counts once, as it does on each process of
// a real world; groups of one rank send nothing and are not counted. Safe to
// read while other threads communicate.
class TESSERA_API CommDebugMode {
 public:
  CommDebugMode();
  ~CommDebugMode();
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  int64_t get_total_counts() const;
  int64_t get_total_bytes() const;
  // By collective: {"all_reduce": 2}. Those that were not issued are absent.
  std::map<std::string, int64_t> get_comm_counts() const;
  std::map<std::string, int64_t> get_comm_bytes() const;
  // By op, pass, collective and group size, in the order of their first
  // appearance.
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

// How the layout of a call came about, as text: the rows of the op's rule, what
// each would cost, which was chosen. The op is named "aten::mm", "mm" or
// "aten::add.Tensor"; without an overload the first that takes the arguments is
// meant. `arguments` are the op's, in the order of its schema; those left out
// at the end have their default value. Nothing is computed or sent: tensors
// with meta shards do as well as any.
// An op that is composed of others, by libtorch or here, is run on tensors
// without data, and each op that it runs by rows is explained.
// Throws c10::ValueError if there is no such op, the arguments do not fit or
// none of them is distributed; otherwise what the call itself would throw.
TESSERA_API std::string explain(
    std::string_view op, c10::ArrayRef<c10::IValue> arguments);

// As above, for tensors that need not exist: `specs` are the layouts of the
// tensor arguments, `others` the remaining arguments, both in the order of the
// schema. A nullptr is an optional tensor that is not given; the last list of
// tensors takes all specs that are left.
TESSERA_API std::string explain(
    std::string_view op,
    c10::ArrayRef<SpecPtr> specs,
    c10::ArrayRef<c10::IValue> others = {});

// What a function does with tensors of these layouts: each op that it runs, and
// the collectives that it issues. `call` is called once with tensors that have
// the layouts of `tensors` and no data. `name` is what the text calls it.
// Throws what `call` throws.
TESSERA_API std::string explain(
    const std::string& name,
    const std::function<void(at::TensorList)>& call,
    at::TensorList tensors);

// A picture of who holds what. Tensors of one or two dimensions are drawn as a
// grid of blocks, labelled with the ranks that hold them; others, and grids too
// wide for a page, as a table of index ranges. Ranks that hold the same block
// are separated by commas, "0,2" or "0-3"; terms of a pending reduction are
// named with it, "sum(0,1)"; ranks that hold nothing are listed below. Does not
// communicate. Throws c10::TypeError unless the tensor is distributed.
TESSERA_API std::string visualize_sharding(const at::Tensor& tensor);
TESSERA_API std::string visualize_sharding(const Spec& spec);

// The same as an SVG document, blocks drawn to scale and coloured by rank. The
// last two dimensions span a panel; of a tensor with more there is a panel for
// each block of the leading ones.
TESSERA_API std::string visualize_sharding_svg(const at::Tensor& tensor);
TESSERA_API std::string visualize_sharding_svg(const Spec& spec);

}  // namespace tessera
