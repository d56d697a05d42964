#include "dispatch/explain.h"

#include <c10/core/GradMode.h>

#include "comm/comm_redirect.h"
#include "dispatch/call_key.h"
#include "dispatch/op_plan.h"
#include "dispatch/op_registry.h"
#include "dispatch/plain_args.h"
#include "dispatch/plan_cache.h"
#include "dispatch/tensor.h"
#include "tessera/world.h"

namespace tessera::detail {

namespace {

void check_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  bool distributed = false;
  const auto call = call_tensors(op, args);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& tensor = call.tensors[i];
    distributed |= is_dtensor(tensor);
    // A call would convert it in place; an explanation changes nothing.
    TORCH_CHECK_VALUE(
        !tensor.defined() || is_dtensor(tensor) ||
            !op.written_args[call.slots[i].argument],
        "[explain] ",
        op.display_name,
        " writes argument '",
        op.handle.schema().arguments()[call.slots[i].argument].name(),
        "', which is a plain tensor: distribute it first");
  }
  TORCH_CHECK_VALUE(
      distributed,
      "[explain] none of the tensors given to ",
      op.display_name,
      " is distributed: make them with distribute_tensor or empty(shape, mesh, "
      "placements, at::kMeta)");
}

// A tensor of the same layout without data. Where ranks are processes, it is
// one of simulated ranks, which have nobody to wait for.
at::Tensor without_data(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) {
    return tensor;
  }
  const Spec& given = *distributed_meta(tensor).spec;
  auto mesh = given.mesh;
  if (!mesh.simulated()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        static_cast<int64_t>(mesh.all_ranks().size()) == mesh.size(),
        "[explain] composed ops on ",
        mesh.str(),
        ", a slice of a mesh, cannot be explained over processes");
    mesh = DeviceMesh(
        mesh.device_type(), mesh.all_ranks(), mesh.shape(), mesh.dim_names());
  }
  auto spec = Spec::make(
      mesh, given.placements, given.sizes, given.strides, given.dtype);
  Shards shards;
  for (const int64_t position : mesh.local_positions()) {
    shards.push_back(empty_shard(*spec, position, c10::kMeta));
  }
  return make_distributed(std::move(spec), std::move(shards));
}

// Writes down what runs while it is alive, in this thread.
class Trace final : public OpObserver, public CommObserver {
 public:
  Trace() : redirect_(this), previous_(PlanCache::local().observer) {
    PlanCache::local().observer = this;
  }
  ~Trace() override { PlanCache::local().observer = previous_; }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void on_op(const OpInfo& op, c10::ArrayRef<c10::IValue> args) override {
    ops_.push_back(explain_plan(op, args));
  }

  void on_collective(const CommEvent& event) override {
    const std::string line =
        std::string(event.collective) + " of " + std::string(event.cause);
    for (auto& [name, count] : sent_) {
      if (name == line) {
        ++count;
        return;
      }
    }
    sent_.emplace_back(line, 1);
  }

  std::string text(const std::string& name) const {
    std::string result = name + " runs ";
    result += ops_.empty() ? "no op by rows"
                           : std::to_string(ops_.size()) + " op" +
                                 (ops_.size() == 1 ? "" : "s") + " by rows";
    result += sent_.empty() ? " and sends nothing" : " and sends";
    for (const auto& [what, count] : sent_) {
      result += "\n  " + std::to_string(count) + " " + what;
    }
    result += "\n";
    for (const auto& op : ops_) {
      result += "\n" + op;
    }
    return result;
  }

 private:
  std::vector<std::string> ops_;
  std::vector<std::pair<std::string, int64_t>> sent_;
  CommRedirectGuard redirect_;
  OpObserver* previous_;
};

// A world of simulated ranks in the place of one of processes.
std::optional<World> stand_in(at::TensorList tensors) {
  for (const auto& tensor : tensors) {
    if (is_dtensor(tensor) &&
        !distributed_meta(tensor).spec->mesh.simulated()) {
      return World::simulate(world_size());
    }
  }
  return std::nullopt;
}

std::vector<at::Tensor> tensors_of(c10::ArrayRef<c10::IValue> args) {
  std::vector<at::Tensor> tensors;
  for (const auto& arg : args) {
    if (arg.isTensor()) {
      tensors.push_back(arg.toTensor());
    } else if (arg.isTensorList()) {
      for (const auto& tensor : arg.toTensorVector()) {
        tensors.push_back(tensor);
      }
    } else if (arg.isList()) {
      for (const auto& element : arg.toListRef()) {
        if (element.isTensor()) {
          tensors.push_back(element.toTensor());
        }
      }
    }
  }
  return tensors;
}

// The arguments with other tensors, in the order of tensors_of.
torch::jit::Stack with_tensors(
    c10::ArrayRef<c10::IValue> args, at::TensorList tensors) {
  torch::jit::Stack stack;
  size_t next = 0;
  for (const auto& arg : args) {
    if (arg.isTensor()) {
      stack.emplace_back(tensors[next++]);
    } else if (arg.isList()) {
      const auto list = arg.toList();
      c10::impl::GenericList changed(list.elementType());
      for (const c10::IValue& element : arg.toListRef()) {
        changed.push_back(
            element.isTensor() ? c10::IValue(tensors[next++]) : element);
      }
      stack.emplace_back(std::move(changed));
    } else {
      stack.push_back(arg);
    }
  }
  return stack;
}

}  // namespace

std::string explain_call(
    const std::string& name,
    const std::function<void(at::TensorList)>& call,
    at::TensorList tensors) {
  const c10::NoGradGuard no_grad;
  const auto world = stand_in(tensors);
  std::vector<at::Tensor> layouts;
  for (const auto& tensor : tensors) {
    layouts.push_back(without_data(tensor));
  }
  Trace trace;
  call(layouts);
  return trace.text(name);
}

std::string explain_op(
    const c10::OperatorHandle& handle, c10::ArrayRef<c10::IValue> args) {
  const c10::NoGradGuard no_grad;
  const OpInfo op(handle);
  check_tensors(op, args);
  const auto& registry = OpRegistry::instance();
  if (const auto explain = registry.explanation(op.name)) {
    return explain(args);
  }
  if (registry.kind(handle) == OpKind::kRule) {
    if (CallKey(op, *op.rule(), args).has_plain_tensor()) {
      admit_plain_tensors(op, args);
    }
    return explain_plan(op, args);
  }
  return explain_call(
      op.display_name,
      [&](at::TensorList tensors) {
        auto stack = with_tensors(args, tensors);
        handle.callBoxed(&stack);
      },
      tensors_of(args));
}

}  // namespace tessera::detail
