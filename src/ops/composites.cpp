// Composite ops of ATen that do more than call other ops on their arguments:
// they make plain tensors of their own, write into them, or read an argument's
// memory.
#include "ops/all_ops.h"
#include "ops/kept_shards.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/arange.h>
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
  // oneDNN has one op for all of it, which takes no shards.
  bool without_onednn = false;
};

// Fused attention kernels draw by themselves, each rank its own numbers. The
// attention that is made of other ops draws those of one device.
bool attention_with_dropout(torch::jit::Stack& stack);

// ATen writes into zeros that it makes itself, which are replicated: what is
// written would be gathered.
bool one_hot_by_comparing(torch::jit::Stack& stack);
bool selected_gradient(torch::jit::Stack& stack);

// Circular padding writes parts of the dimensions that it pads, which a result
// that happens to have the argument's size would have sharded. Leaves the call
// to ATen.
bool whole_where_padded(torch::jit::Stack& stack);

// The state that a recurrent module starts from is sharded as the batch is, or
// every step would gather its batch into it. Leaves the call to ATen.
bool state_as_batch(torch::jit::Stack& stack);

const std::vector<Composite>& composites() {
  static const std::vector<Composite> all = {
      {"aten::_pad_circular", {}, {}, whole_where_padded},
      {"aten::_scaled_dot_product_attention_math"},
      {"aten::combinations"},
      {"aten::cummaxmin_backward"},
      {"aten::ctc_loss", {"input_lengths", "target_lengths"}},
      {"aten::gru", {"batch_sizes"}, {"hx"}, state_as_batch},
      {"aten::gru_cell", {}, {"hx"}},
      {"aten::histogramdd"},
      {"aten::index_select_backward"},
      {"aten::istft"},
      {"aten::linalg_cond"},
      {"aten::linalg_matrix_norm"},
      {"aten::linalg_matrix_power"},
      {"aten::linalg_matrix_rank"},
      {"aten::linalg_pinv"},
      {"aten::lstm", {"batch_sizes"}, {"hx"}, state_as_batch, true},
      {"aten::lstm_cell", {}, {"hx"}},
      {"aten::masked_select_backward"},
      {"aten::matrix_power"},
      {"aten::nanquantile"},
      {"aten::one_hot", {}, {}, one_hot_by_comparing},
      {"aten::quantile"},
      {"aten::rms_norm"},
      {"aten::rnn_relu", {"batch_sizes"}, {"hx"}, state_as_batch},
      {"aten::rnn_relu_cell", {}, {"hx"}},
      {"aten::rnn_tanh", {"batch_sizes"}, {"hx"}, state_as_batch},
      {"aten::rnn_tanh_cell", {}, {"hx"}},
      {"aten::scaled_dot_product_attention", {}, {}, attention_with_dropout},
      {"aten::stft"},
      {"aten::tensor_split", {"tensor_indices_or_sections"}},
      {"aten::trapezoid"},
      {"aten::trapz"},
      {"aten::value_selecting_reduction_backward", {}, {}, selected_gradient},
  };
  return all;
}

// While one is alive, ATen makes ops of its own kernels, not of oneDNN's.
class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(enabled_); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;

 private:
  bool enabled_ = at::globalContext().userEnabledMkldnn();
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
      : op_(op),
        instead_(composite.instead),
        without_onednn_(composite.without_onednn) {
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
    std::optional<WithoutOneDnn> without;
    if (without_onednn_) {
      without.emplace();
    }
    if (op_.writes) {
      // Into an `out` that the caller gave.
      const ImplicitScope implicit;
      run_composite(op_.handle, stack);
      return;
    }
    const auto mesh = first_mesh(c10::ArrayRef<c10::IValue>(args, count));
    {
      const ImplicitScope implicit;
      const CompositeScope writes_own;
      run_composite(op_.handle, stack);
    }
    if (mesh.has_value()) {
      replicate_results(*mesh, *stack);
    }
  }

 private:
  static std::optional<DeviceMesh> first_mesh(c10::ArrayRef<c10::IValue> args) {
    for (const auto& arg : args) {
      if (arg.isTensor() && is_dtensor(arg.toTensor())) {
        return distributed_meta(arg.toTensor()).spec->mesh;
      }
    }
    return std::nullopt;
  }

  // Of arguments without elements ATen may return a tensor that it makes
  // itself.
  void replicate_results(
      const DeviceMesh& mesh, torch::jit::Stack& stack) const {
    for (size_t r = 0; r < op_.returns.size(); ++r) {
      auto& value = torch::jit::peek(stack, r, op_.returns.size());
      if (value.isTensor() && value.toTensor().defined() &&
          !is_dtensor(value.toTensor())) {
        value = replicated(mesh, value.toTensor());
      }
    }
  }

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
  bool without_onednn_;
  std::vector<bool> read_;
  std::vector<bool> may_be_plain_;
};

void replace_arguments(
    torch::jit::Stack& stack, size_t count, at::Tensor result) {
  torch::jit::drop(stack, count);
  stack.emplace_back(std::move(result));
}

bool attention_with_dropout(torch::jit::Stack& stack) {
  // query, key, value, attn_mask?, dropout_p, is_causal, scale?, enable_gqa
  constexpr size_t kArguments = 8;
  auto* args = stack.data() + stack.size() - kArguments;
  const double dropout = args[4].toDouble();
  if (dropout == 0) {
    return false;
  }
  TORCH_CHECK(
      dropout > 0 && dropout <= 1,
      "dropout probability has to be between 0 and 1, but got ",
      dropout);
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
  replace_arguments(stack, kArguments, std::move(result));
  return true;
}

bool one_hot_by_comparing(torch::jit::Stack& stack) {
  // self, num_classes
  constexpr size_t kArguments = 2;
  auto* args = stack.data() + stack.size() - kArguments;
  const auto& self = args[0].toTensor();
  int64_t classes = args[1].toInt();
  if (self.scalar_type() != at::kLong || self.numel() == 0 || self.is_meta() ||
      classes == 0 || classes < -1) {
    return false;
  }
  TORCH_CHECK(
      self.min().item<int64_t>() >= 0, "Class values must be non-negative.");
  const auto largest = self.max().item<int64_t>();
  TORCH_CHECK(
      classes == -1 || classes > largest,
      "Class values must be smaller than num_classes.");
  classes = classes == -1 ? largest + 1 : classes;
  const ImplicitScope implicit;
  const auto all = at::arange(classes, self.options());
  replace_arguments(
      stack, kArguments, self.unsqueeze(-1).eq(all).to(at::kLong));
  return true;
}

bool selected_gradient(torch::jit::Stack& stack) {
  // grad, dim, indices, sizes, keepdim
  constexpr size_t kArguments = 5;
  auto* args = stack.data() + stack.size() - kArguments;
  auto grad = args[0].toTensor();
  auto indices = args[2].toTensor();
  if (!is_dtensor(grad) || !is_dtensor(indices)) {
    return false;
  }
  const int64_t dim = args[1].toInt();
  const auto sizes = args[3].toIntVector();
  if (!args[4].toBool() && !sizes.empty()) {
    grad = grad.unsqueeze(dim);
    indices = indices.unsqueeze(dim);
  }
  const CompositeScope own;
  replace_arguments(
      stack, kArguments, grad.new_zeros(sizes).scatter(dim, indices, grad));
  return true;
}

bool whole_where_padded(torch::jit::Stack& stack) {
  // self, pad
  auto* args = stack.data() + stack.size() - 2;
  const auto& self = args[0].toTensor();
  const auto padded =
      self.dim() - static_cast<int64_t>(args[1].toIntVector().size()) / 2;
  const auto placements = kept_shards(
      distributed_meta(self).spec->placements,
      [&](int64_t dim) { return dim < padded; });
  args[0] = redistribute(self, placements, "aten::_pad_circular");
  return false;
}

// A state [layers, batch, ...] that every rank has whole, in this layout.
at::Tensor placed_state(
    const at::Tensor& state, const DeviceMesh& mesh, PlacementsRef placements) {
  const Placements whole(mesh.ndim(), Replicate());
  if (is_dtensor(state)) {
    const Spec& spec = *distributed_meta(state).spec;
    return spec.mesh == mesh && spec.placements == whole
               ? redistribute(state, placements, "tessera::composite")
               : state;
  }
  const auto distributed = from_shards(
      Spec::make(mesh, whole, state.sizes(), state.scalar_type()),
      {state.contiguous()},
      /*shared=*/true);
  return redistribute(distributed, placements, "tessera::composite");
}

bool state_as_batch(torch::jit::Stack& stack) {
  // input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
  // batch_first; overloads for packed sequences have other arguments.
  constexpr size_t kArguments = 9;
  auto* args = stack.data() + stack.size() - kArguments;
  if (!args[2].isTensorList() || !args[3].isBool() ||
      !is_dtensor(args[0].toTensor()) || args[0].toTensor().dim() != 3) {
    return false;
  }
  const auto& input = args[0].toTensor();
  const int64_t batch = args[8].toBool() ? 0 : 1;
  const Spec& spec = *distributed_meta(input).spec;
  Placements placements(spec.mesh.ndim(), Replicate());
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (spec.placements[m].is_shard(batch)) {
      placements[m] = Shard(1);
    }
  }
  const auto placed = [&](const at::Tensor& state) {
    return state.dim() == 3 && state.size(1) == input.size(batch)
               ? placed_state(state, spec.mesh, placements)
               : state;
  };
  if (args[1].isTensor()) {
    args[1] = placed(args[1].toTensor());
    return false;
  }
  std::vector<at::Tensor> states;
  for (const auto& state : args[1].toTensorVector()) {
    states.push_back(placed(state));
  }
  args[1] = states;
  return false;
}

// ATen's kernel reads memory where no gradient is wanted. What is called
// instead takes more dtypes.
at::Tensor max_pool1d(
    const at::Tensor& self,
    at::IntArrayRef kernel_size,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool ceil_mode) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      at::isFloatingType(self.scalar_type()),
      "max_pool1d is not implemented for ",
      self.scalar_type());
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
