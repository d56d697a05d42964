// Gradients of distributed leaves come in the leaf's own layout, reduced once,
// so that optimizers find no pending reduction.
//
// A hook on the leaf does it, before all others. It is put there where the leaf
// is first used: leaves are made in many ways that nobody tells us of (a copy,
// a clone that requires_grad_, a parameter that was loaded,
// torch.nn.Parameter). Whoever clears the hooks of the leaf clears this one
// too: then another, on the graph that is waiting for its backward pass, takes
// its place.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

namespace tessera::detail {

// The leaves that are known to have their hook, by their autograd state. Of
// fixed size: a leaf may be missing, and is then looked at again.
class HookedLeaves {
 public:
  bool contains(const void* autograd) const {
    return slot(autograd).load(std::memory_order_acquire) == autograd;
  }
  void insert(const void* autograd) {
    slot(autograd).store(autograd, std::memory_order_release);
  }
  void erase(const void* autograd) {
    slot(autograd).compare_exchange_strong(autograd, nullptr);
  }

 private:
  using Slot = std::atomic<const void*>;
  static constexpr size_t kSlots = 4096;

  const Slot& slot(const void* autograd) const {
    const auto address = reinterpret_cast<uint64_t>(autograd);
    return slots_[address * 0x9E3779B97F4A7C15ull >> 52];
  }
  Slot& slot(const void* autograd) {
    return const_cast<Slot&>(std::as_const(*this).slot(autograd));
  }

  std::array<Slot, kSlots> slots_{};
};

// Those of this process.
extern HookedLeaves hooked_leaves;

// Whether the tensor is a leaf that may lack its hook. Costs a few
// instructions.
inline bool is_new_leaf(const at::Tensor& distributed) {
  const auto* autograd = static_cast<const torch::autograd::AutogradMeta*>(
      distributed.unsafeGetTensorImpl()->autograd_meta());
  return autograd != nullptr && autograd->requires_grad_ &&
         !hooked_leaves.contains(autograd);
}

// Sees to it that the gradients of those of the tensors that are new leaves
// come in the leaf's layout; that of a pending reduction is replicated.
void keep_grad_layouts(at::TensorList tensors);

// The same for one, whose hooks the caller has just changed.
void keep_grad_layout_of(const at::Tensor& leaf);

}  // namespace tessera::detail
