// Composite ops of ATen that do more than call other ops on their arguments:
// they make plain tensors of their own, write into them, or read an argument's
// memory.
#include "ops/all_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/max_pool1d_with_indices.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "dispatch/autograd.h"
#include "dispatch/composite.h"
#include "dispatch/op_plan.h"
#include "dispatch/plain_args.h"
#include "dispatch/tensor.h"

namespace tessera::detail {

namespace {

struct Composite {
  std::string_view name;  // all overloads that are composite
  // Arguments whose values are read from memory: each rank gets the whole.
  std::vector<std::string_view> read = {};
  // Arguments that are often plain (the zeros that a module starts from), taken
  // as replicated.
  std::vector<std::string_view> may_be_plain = {};
  // Carries a call out in another way, and says so.
  bool (*instead)(torch::jit::Stack& stack) = nullptr;
};

// Fused attention kernels draw by themselves, each rank its own numbers. The
// attention that is made of other ops draws those of one device.
bool attention_with_dropout(torch::jit::Stack& stack);

const std::vector<Composite>& composites() {
  static const std::vector<Composite> all = {
      {"aten::_scaled_dot_product_attention_math"},
      {"aten::combinations"},
      {"aten::cummaxmin_backward"},
      {"aten::ctc_loss", {"input_lengths", "target_lengths"}},
      {"aten::gru", {"batch_sizes"}, {"hx"}},
      {"aten::gru_cell", {}, {"hx"}},
      {"aten::histogramdd"},
      {"aten::index_select_backward"},
      {"aten::istft"},
      {"aten::linalg_matrix_power"},
      {"aten::linalg_matrix_rank"},
      {"aten::linalg_pinv"},
      {"aten::lstm", {"batch_sizes"}, {"hx"}},
      {"aten::lstm_cell", {}, {"hx"}},
      {"aten::masked_select_backward"},
      {"aten::matrix_power"},
      {"aten::nanquantile"},
      {"aten::one_hot"},
      {"aten::quantile"},
      {"aten::rms_norm"},
      {"aten::rnn_relu", {"batch_sizes"}, {"hx"}},
      {"aten::rnn_relu_cell", {}, {"hx"}},
      {"aten::rnn_tanh", {"batch_sizes"}, {"hx"}},
      {"aten::rnn_tanh_cell", {}, {"hx"}},
      {"aten::scaled_dot_product_attention", {}, {}, attention_with_dropout},
      {"aten::stft"},
      {"aten::tensor_split", {"tensor_indices_or_sections"}},
      {"aten::value_selecting_reduction_backward"},
  };
  return all;
}

class ImplicitScope {
 public:
  ImplicitScope() { enter_implicit_replication(); }
  ~ImplicitScope() { leave_implicit_replication(); }
  ImplicitScope(const ImplicitScope&) = delete;
  ImplicitScope& operator=(const ImplicitScope&) = delete;
};

// The value of a tensor that is only read, as a plain tensor.
at::Tensor plain_value(const at::Tensor& tensor) {
  const auto& mesh = distributed_meta(tensor).spec->mesh;
  const Placements replicated(mesh.ndim(), Replicate());
  return current_shards(
      redistribute(tensor.detach(), replicated, "tessera::composite"))[0];
}

bool contains(
    const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Calls ATen's own kernel with the plain tensors that it makes taken as
// replicated. Plain tensors among the arguments are the caller's, and refused.
class CompositeKernel final : public c10::OperatorKernel {
 public:
  CompositeKernel(const c10::OperatorHandle& op, const Composite& composite)
      : op_(op), instead_(composite.instead) {
    for (const auto& argument : op.schema().arguments()) {
      read_.push_back(contains(composite.read, argument.name()));
      may_be_plain_.push_back(
          contains(composite.may_be_plain, argument.name()));
    }
  }

  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet,
      torch::jit::Stack* stack) {
    const size_t count = op_.args.size();
    auto* args = stack->data() + stack->size() - count;
    check_plain(c10::ArrayRef<c10::IValue>(args, count));
    for (size_t i = 0; i < count; ++i) {
      if (read_[i] && args[i].isTensor() && is_dtensor(args[i].toTensor())) {
        args[i] = plain_value(args[i].toTensor());
      }
    }
    if (instead_ != nullptr && instead_(*stack)) {
      return;
    }
    const ImplicitScope implicit;
    // What it writes is its own, unless the caller gave it an `out`.
    std::optional<CompositeScope> writes_own;
    if (!op_.writes) {
      writes_own.emplace();
    }
    run_composite(op_.handle, stack);
  }

 private:
  void check_plain(c10::ArrayRef<c10::IValue> args) const {
    const auto call = call_tensors(op_, args);
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      const auto& tensor = call.tensors[i];
      const size_t argument = call.slots[i].argument;
      if (tensor.defined() && !is_dtensor(tensor) && tensor.dim() != 0 &&
          !may_be_plain_[argument] && !read_[argument]) {
        return admit_plain_tensors(op_, args);
      }
    }
  }

  OpInfo op_;
  bool (*instead_)(torch::jit::Stack& stack);
  std::vector<bool> read_;
  std::vector<bool> may_be_plain_;
};

bool attention_with_dropout(torch::jit::Stack& stack) {
  // query, key, value, attn_mask?, dropout_p, is_causal, scale?, enable_gqa
  constexpr size_t kArguments = 8;
  auto* args = stack.data() + stack.size() - kArguments;
  const double dropout = args[4].toDouble();
  if (dropout == 0) {
    return false;
  }
  auto result = std::get<0>(at::_scaled_dot_product_attention_math(
      args[0].toTensor(),
      args[1].toTensor(),
      args[2].toTensor(),
      args[3].toOptional<at::Tensor>(),
      dropout,
      args[5].toBool(),
      /*dropout_mask=*/std::nullopt,
      args[6].toOptional<double>(),
      args[7].toBool()));
  torch::jit::drop(stack, kArguments);
  stack.emplace_back(std::move(result));
  return true;
}

// ATen's kernel reads memory where no gradient is wanted.
at::Tensor max_pool1d(
    const at::Tensor& self,
    at::IntArrayRef kernel_size,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool ceil_mode) {
  return std::get<0>(at::max_pool1d_with_indices(
      self, kernel_size, stride, padding, dilation, ceil_mode));
}

}  // namespace

void register_composites(OpRegistry& ops) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto found = std::find_if(
        composites().begin(), composites().end(), [&](const auto& composite) {
          return composite.name == name.name;
        });
    if (found == composites().end()) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !is_composite(*op)) {
      continue;
    }
    // Names in a library are without their namespace.
    const auto full =
        c10::toString(name).substr(std::string_view("aten::").size());
    const auto kernel = [&] {
      return torch::CppFunction::makeFromBoxedFunctor(
          std::make_unique<CompositeKernel>(*op, *found));
    };
    // In inference mode the first is asked, otherwise the second.
    ops.composed(full.c_str(), kernel());
    ops.above_autograd(full.c_str(), kernel());
  }
  ops.composed("max_pool1d", &max_pool1d);
  ops.above_autograd("max_pool1d", &max_pool1d);
}

}  // namespace tessera::detail
