#include "dispatch/typed_kernel.h"

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "dispatch/call_key.h"
#include "dispatch/execute.h"
#include "dispatch/kernel.h"
#include "dispatch/plan_cache.h"
#include "dispatch/tensor.h"

namespace tessera::detail {

namespace {

// The shard that goes into the op in the place of an argument. Requires: a
// direct plan, of which the key has seen that no shard is out of date.
const at::Tensor& local_argument(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? distributed_meta(tensor).unchecked_shards()[0]
                            : tensor;
}
// An op in place writes into the tensor, not into the handle.
at::Tensor& local_argument(at::Tensor& tensor) {
  return const_cast<at::Tensor&>(local_argument(std::as_const(tensor)));
}
const at::Scalar& local_argument(const at::Scalar& number) { return number; }

template <typename Signature>
class TypedKernel;

template <typename Result, typename... Args>
class TypedKernel<Result(Args...)> {
 public:
  static constexpr bool kInPlace = std::is_reference_v<Result>;

  explicit TypedKernel(const c10::OperatorHandle& op)
      : op_(std::make_shared<OpInfo>(op)),
        on_shards_(op.typed<Result(Args...)>()) {}

  [[gnu::hot]] Result operator()(Args... args) const {
    const LocalOpGuard guard(/*is_view=*/false);
    const OpPlan* const plan = direct_plan(args...);
    if (plan == nullptr) {
      return run_boxed(args...);
    }
    if constexpr (kInPlace) {
      begin_write(first(args...), op_->display_name);
      on_shards_.call(local_argument(args)...);
      raise_errors_of_devices();
      return first(args...);
    } else {
      // The plan may be gone after the call.
      auto spec = plan->outputs[0];
      const bool contiguous = plan->contiguous[0];
      auto shard = on_shards_.call(local_argument(args)...);
      keep_planned_strides(shard, *spec, contiguous);
      auto result = make_distributed(std::move(spec), std::move(shard));
      raise_errors_of_devices();
      return result;
    }
  }

 private:
  static auto& first(Args... args) { return std::get<0>(std::tie(args...)); }

  // nullptr where the common path has more to do than to call the op.
  [[gnu::hot]] const OpPlan* direct_plan(Args... args) const {
    const Rule* const rule = op_->rule();
    if (rule == nullptr) {
      return nullptr;
    }
    if constexpr (kInPlace) {
      const at::Tensor& written = first(args...);
      if (!is_dtensor(written) || distributed_meta(written).is_copied_view()) {
        return nullptr;
      }
    }
    CallKey key(*op_, *rule);
    (key.add(args), ...);
    auto& plans = PlanCache::local();
    if (key.has_plain_tensor() || key.has_new_leaf() || !key.cacheable() ||
        plans.observer != nullptr) {
      return nullptr;
    }
    const OpPlan* const plan = plans.find_direct(key);
    const bool defined =
        kInPlace || (plan != nullptr && plan->outputs[0] != nullptr);
    return defined ? plan : nullptr;
  }

  Result run_boxed(Args... args) const {
    torch::jit::Stack stack;
    stack.reserve(sizeof...(Args));
    (stack.emplace_back(args), ...);
    run_op(*op_, &stack);
    if constexpr (kInPlace) {
      return first(args...);
    } else {
      return std::move(stack.back()).toTensor();
    }
  }

  // Shared: the dispatcher copies kernels.
  std::shared_ptr<const OpInfo> op_;
  c10::TypedOperatorHandle<Result(Args...)> on_shards_;
};

template <typename Arg>
bool takes(const c10::Argument& argument) {
  const bool written =
      argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  if constexpr (std::is_same_v<Arg, const at::Scalar&>) {
    return argument.type()->kind() == c10::TypeKind::NumberType;
  } else {
    return argument.type()->kind() == c10::TypeKind::TensorType &&
           written == std::is_same_v<Arg, at::Tensor&>;
  }
}

template <typename Signature>
struct Match;

template <typename Result, typename... Args>
struct Match<Result(Args...)> {
  // Of results, fresh ones only: views remember what they view.
  static bool of(const c10::FunctionSchema& schema) {
    const auto& arguments = schema.arguments();
    const auto& returns = schema.returns();
    if (arguments.size() != sizeof...(Args) || returns.size() != 1 ||
        returns[0].type()->kind() != c10::TypeKind::TensorType ||
        (returns[0].alias_info() != nullptr) != std::is_reference_v<Result>) {
      return false;
    }
    size_t next = 0;
    return (takes<Args>(arguments[next++]) && ...);
  }
};

template <typename... Signatures>
std::optional<torch::CppFunction> first_match(const c10::OperatorHandle& op) {
  if (OpInfo(op).rule() == nullptr) {
    return std::nullopt;
  }
  std::optional<torch::CppFunction> kernel;
  const auto try_one = [&]<typename Signature>(Signature*) {
    if (!Match<Signature>::of(op.schema())) {
      return false;
    }
    kernel.emplace(TypedKernel<Signature>(op));
    return true;
  };
  (try_one(static_cast<Signatures*>(nullptr)) || ...);
  return kernel;
}

using In = const at::Tensor&;
using Number = const at::Scalar&;
using Written = at::Tensor&;

}  // namespace

std::optional<torch::CppFunction> typed_kernel(const c10::OperatorHandle& op) {
  return first_match<
      at::Tensor(In),
      at::Tensor(In, In),
      at::Tensor(In, Number),
      at::Tensor(In, In, Number),
      at::Tensor(In, Number, Number),
      at::Tensor(In, In, In),
      at::Tensor(In, In, In, Number),
      at::Tensor(In, In, In, Number, Number),
      Written(Written),
      Written(Written, In),
      Written(Written, Number),
      Written(Written, In, Number),
      Written(Written, Number, Number),
      Written(Written, In, In, Number)>(op);
}

}  // namespace tessera::detail
