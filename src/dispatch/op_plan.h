// An OpPlan is how one call is carried out: which arguments to redistribute,
// which arguments differ from rank to rank, how the results lie. Made on a
// cache miss, then only read.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/op_info.h"
#include "dispatch/run_steps.h"
#include "dispatch/tensor.h"
#include "plan/redistribute_plan.h"

namespace tessera::detail {

// Where a tensor argument stands in the call.
struct TensorSlot {
  uint32_t argument;
  int32_t element;  // in a list; -1 for a tensor by itself
};

struct Redistribution {
  size_t tensor;  // index among the call's tensors
  SpecPtr from;
  std::shared_ptr<const RedistributePlan> plan;
};

struct FloatTerms;
struct TermFactors;

struct OpPlan {
  // First what a direct call reads, side by side: caches are cold after an op.

  // Nothing but the op itself is called: the one shard that lives here goes
  // into it as it is, and its results are the shards of the results. Known
  // after the first call.
  bool direct = false;
  // Whether it will be.
  bool becomes_direct = false;
  // The one shard that lives here goes into the op as it is, perhaps with
  // arguments of its own, and the op returns no list.
  bool on_one_shard = false;
  // There is more to do than to execute the plan: it moves or gathers what is
  // written, or there are factors to look at.
  bool is_special = false;
  // Whether each of the results is contiguous.
  c10::SmallVector<bool, 2> contiguous;
  // The specs of the results, lists laid out flat; nullptr for undefined ones.
  // Written arguments, which are returned as they are, have none.
  c10::SmallVector<SpecPtr, 1> outputs;

  DeviceMesh mesh;
  // What the key's pointers point at: alive as long as the plan is.
  std::vector<SpecPtr> inputs;
  std::vector<TensorSlot> slots;  // of the tensors, in the order of `inputs`
  std::vector<Redistribution> redistributions;
  Slices slices = Slices::Contiguous;  // of the redistributions
  // For each local position, the arguments that differ there.
  std::vector<std::vector<std::pair<size_t, c10::IValue>>> local_arguments;
  // The dtypes in `outputs` are guesses: the first result tells.
  bool dtypes_unknown = false;
  // The local call is in float: it takes or leaves pending sums of half kinds.
  std::shared_ptr<const FloatTerms> in_float;
  // What pending sums of the call are multiplied with.
  std::shared_ptr<const TermFactors> factors;
  // A view's base has to be redistributed: the view is a copy (copied_view.h).
  bool copies_view = false;
  // By how many elements views among `outputs` begin behind their base. Empty
  // if none does.
  c10::SmallVector<int64_t, 1> view_offsets;
  // Shards on the meta device, for which many ops have no kernel: only the
  // layout says what the results are like.
  bool without_data = false;

  // What is written must be redistributed first, and the call planned again.
  bool moves_written = false;

  // No row keeps the layout of what is written: the call runs on gathered
  // inputs, and each rank takes its part of what was written.
  bool gathers_written = false;

  // The local op may refuse values on some ranks and not on others.
  bool agrees = false;

  explicit OpPlan(const DeviceMesh& m) : mesh(m) {}
};

// Plans one call. Requires: the op has a rule. Throws c10::ValueError for
// arguments on different meshes. Does not communicate.
std::shared_ptr<OpPlan> plan_op(
    const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// The rows that were considered, their prices and the choice, as text.
std::string explain_plan(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// The tensors of a call, with where they stand.
struct CallTensors {
  std::vector<TensorSlot> slots;
  std::vector<at::Tensor> tensors;  // undefined ones included
};
CallTensors call_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// The mesh of the tensors that are distributed. Requires: one of them is.
// Throws c10::ValueError, tagged with `caller`, if they have different ones.
DeviceMesh common_mesh(
    std::string_view caller, c10::ArrayRef<at::Tensor> tensors);

// Puts `tensors` where the slots say. Lists are replaced by new ones: the
// caller's are shared.
void put_tensors(
    torch::jit::Stack& args,
    c10::ArrayRef<TensorSlot> slots,
    c10::ArrayRef<at::Tensor> tensors);

}  // namespace tessera::detail
