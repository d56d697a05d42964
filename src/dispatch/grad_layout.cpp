#include "dispatch/grad_layout.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "dispatch/autograd.h"

namespace tessera::detail {

constinit HookedLeaves hooked_leaves;

namespace {

using torch::autograd::variable_list;

// The leaf owns its hook.
class GradLayoutHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit GradLayoutHook(c10::TensorImpl* leaf)
      : leaf_(leaf), autograd_(leaf->autograd_meta()) {}

  // Leaves die, and torch drops the hooks of one that gets its first hook from
  // a user.
  ~GradLayoutHook() override { hooked_leaves.erase(autograd_); }

  GradLayoutHook(const GradLayoutHook&) = delete;
  GradLayoutHook& operator=(const GradLayoutHook&) = delete;

  variable_list operator()(const variable_list& grads) override {
    const auto* meta =
        static_cast<const DistributedMeta*>(leaf_->get_backend_meta());
    // A formula may give no gradient.
    if (!grads[0].defined() || meta == nullptr) {
      return grads;
    }
    auto laid_out = grads;
    laid_out[0] = grad_in_layout(
        grads[0], meta->spec->mesh, grad_placements_of(meta->spec->placements));
    return laid_out;
  }

 private:
  c10::TensorImpl* const leaf_;
  const void* const autograd_;
};

void keep_grad_layout(const at::Tensor& leaf) {
  auto& autograd = *torch::autograd::impl::get_autograd_meta(leaf);
  const std::lock_guard lock(autograd.mutex_);
  auto& hooks = autograd.hooks_;
  const bool has_hook =
      std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
        return dynamic_cast<GradLayoutHook*>(hook.get()) != nullptr;
      });
  if (!has_hook) {
    // First, so that users' hooks see the gradient as the leaf is laid out.
    hooks.insert(
        hooks.begin(),
        std::make_unique<GradLayoutHook>(leaf.unsafeGetTensorImpl()));
  }
  hooked_leaves.insert(&autograd);
}

}  // namespace

void keep_grad_layouts(at::TensorList tensors) {
  // A backward pass may be walking these very hooks.
  if (torch::autograd::get_current_node() != nullptr) {
    return;
  }
  for (const auto& tensor : tensors) {
    if (is_dtensor(tensor) && is_new_leaf(tensor)) {
      keep_grad_layout(tensor);
    }
  }
}

}  // namespace tessera::detail
