#include "dispatch/grad_layout.h"

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <typeinfo>

#include "dispatch/autograd.h"

namespace tessera::detail {

constinit HookedLeaves hooked_leaves;

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::AutogradMeta;
using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;

// The gradient in the layout of its leaf.
variable_list laid_out(c10::TensorImpl& leaf, const variable_list& grads) {
  const auto* meta =
      static_cast<const DistributedMeta*>(leaf.get_backend_meta());
  // A formula may give no gradient.
  if (!grads[0].defined() || meta == nullptr) {
    return grads;
  }
  auto result = grads;
  result[0] = grad_in_layout(
      grads[0], meta->spec->mesh, grad_placements_of(meta->spec->placements));
  return result;
}

// On the node that accumulates a leaf's gradient, after all hooks of the leaf.
// No change of those reaches it; it lives as long as the graph.
class AccumulatedLayout final : public FunctionPreHook {
 public:
  explicit AccumulatedLayout(const AccumulateGrad& owner) : owner_(owner) {}

  variable_list operator()(const variable_list& grads) override {
    return laid_out(*owner_.variable.unsafeGetTensorImpl(), grads);
  }

 private:
  const AccumulateGrad& owner_;
};

// Lays out the gradient that a graph which is there already will give to the
// leaf with this autograd state. (A saved variable that was unpacked has the
// same node as the leaf itself.)
void keep_in_graph(const AutogradMeta& autograd) {
  const auto node = autograd.grad_accumulator_.lock();
  if (const auto* owner = dynamic_cast<const AccumulateGrad*>(node.get())) {
    node->add_retains_grad_hook(std::make_unique<AccumulatedLayout>(*owner), 0);
  }
}

// The first hook of a leaf, which owns it. It also calls the hooks that C++
// registers: torch keeps these in a list, and when it makes the list it clears
// all other hooks, so the list is there from the beginning.
class GradLayoutHook final : public FunctionPreHook {
 public:
  // `list` is null where another hook calls its hooks.
  GradLayoutHook(
      c10::TensorImpl* leaf, std::shared_ptr<torch::autograd::hooks_list> list)
      : leaf_(leaf),
        autograd_(static_cast<AutogradMeta*>(leaf->autograd_meta())),
        list_(std::move(list)) {}

  // The leaf dies, or its hooks are cleared: by the first that Python
  // registers, or by who sets them to None. What was recorded until then goes
  // on without this one; the next use of the leaf puts another in its place.
  ~GradLayoutHook() override {
    hooked_leaves.erase(autograd_);
    keep_in_graph(*autograd_);
  }

  GradLayoutHook(const GradLayoutHook&) = delete;
  GradLayoutHook& operator=(const GradLayoutHook&) = delete;

  variable_list operator()(const variable_list& grads) override {
    auto result = laid_out(*leaf_, grads);
    for (size_t i = 0; list_ != nullptr && i < list_->size(); ++i) {
      call(i, result[0]);
    }
    return result;
  }

 private:
  // Calls a user's hook. One that was taken away is null; what returns nothing
  // changes nothing.
  void call(size_t index, at::Tensor& grad) const {
    // A copy: the hook may add another to the list.
    const auto hook = (*list_)[index];
    const at::TensorBase changed = hook ? hook(grad) : at::TensorBase();
    if (changed.defined()) {
      torch::autograd::check_variable_result(
          grad, changed, std::to_string(index));
      grad = at::Tensor(changed);
    }
  }

  c10::TensorImpl* const leaf_;
  const AutogradMeta* const autograd_;
  const std::shared_ptr<torch::autograd::hooks_list> list_;
};

bool lays_out(const std::unique_ptr<FunctionPreHook>& hook) {
  return dynamic_cast<const GradLayoutHook*>(hook.get()) != nullptr;
}

// Whether it is torch's own, which calls the hooks of C++. Its type is not
// exported.
bool calls_list(const std::unique_ptr<FunctionPreHook>& hook) {
  const auto& it = *hook;
  const std::string_view type = typeid(it).name();
  return type.find("CppFunctionTensorPreHook") != std::string_view::npos;
}

AutogradMeta& autograd_of(const at::Tensor& leaf) {
  return *torch::autograd::impl::get_autograd_meta(leaf);
}

void put_hook_first(const at::Tensor& leaf) {
  auto& autograd = autograd_of(leaf);
  const std::lock_guard lock(autograd.mutex_);
  auto& hooks = autograd.hooks_;
  if (std::none_of(hooks.begin(), hooks.end(), lays_out)) {
    auto& list = autograd.cpp_hooks_list_;
    if (list == nullptr) {
      list = std::make_shared<torch::autograd::hooks_list>();
    }
    const bool is_called = std::any_of(hooks.begin(), hooks.end(), calls_list);
    // First, so that users' hooks see the gradient as the leaf is laid out.
    hooks.insert(
        hooks.begin(),
        std::make_unique<GradLayoutHook>(
            leaf.unsafeGetTensorImpl(), is_called ? nullptr : list));
  }
  hooked_leaves.insert(&autograd);
}

}  // namespace

void keep_grad_layouts(at::TensorList tensors) {
  for (const auto& tensor : tensors) {
    if (!is_dtensor(tensor) || !is_new_leaf(tensor)) {
      continue;
    }
    // A backward pass may be walking these very hooks.
    if (torch::autograd::get_current_node() != nullptr) {
      keep_in_graph(autograd_of(tensor));
    } else {
      put_hook_first(tensor);
    }
  }
}

void keep_grad_layout_of(const at::Tensor& leaf) {
  if (!is_dtensor(leaf) || !is_new_leaf(leaf)) {
    return;
  }
  // Who has just changed the hooks knows that nobody walks them, unless it is
  // one of them.
  const auto node = torch::autograd::get_current_node();
  const auto accumulator = autograd_of(leaf).grad_accumulator_.lock();
  if (node != nullptr && node == accumulator) {
    keep_in_graph(autograd_of(leaf));
  } else {
    put_hook_first(leaf);
  }
}

}  // namespace tessera::detail
