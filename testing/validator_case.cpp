#include "testing/validator_case.h"

#include <utility>

#include "testing/layouts.h"
#include "testing/rejoin.h"

namespace tessera::testing {

namespace {

// Calls `op` and holds its arguments meanwhile: ATen 2.11 answers an op that
// writes to several tensors with references to those it drops from the stack.
void call_holding(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const torch::jit::Stack held = stack;
  op.callBoxed(&stack);
}

}  // namespace

Case::Case(const Sample& sample, const Rule& rule, uint64_t seed)
    : rule_(rule),
      op_(sample.handle()),
      seed_(seed),
      arguments_(sample.arguments(seed)),
      tensors_(flat_tensors()),
      call_(op_.schema(), arguments_, tensor_args()) {
  auto stack = with_tensors(tensors_);
  call_holding(op_, stack);
  expected_ = std::move(stack);
  for (const auto& value : expected_) {
    const auto results = tensors_in(value);
    const bool has_sizes = !results.empty() && results[0].defined();
    output_sizes_.push_back(has_sizes ? Sizes(results[0].sizes()) : Sizes{});
  }
}

std::vector<torch::jit::Stack> Case::run(
    const DeviceMesh& mesh, const Placed& in, const Placed& out) const {
  std::vector<std::vector<at::Tensor>> shards;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    shards.push_back(
        tensors_[i].defined()
            ? shards_of(tensors_[i], mesh, in[i], seed_ + 11 * i)
            : std::vector<at::Tensor>(mesh.size()));
  }
  std::vector<torch::jit::Stack> results;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    std::vector<at::Tensor> local;
    for (const auto& parts : shards) {
      local.push_back(parts[rank]);
    }
    auto stack = with_tensors(local);
    put_local_arguments(stack, mesh, rank, in, out);
    call_holding(op_, stack);
    results.push_back(std::move(stack));
  }
  return results;
}

bool Case::is_optional_tensor(size_t argument) const {
  return op_.schema().arguments()[argument].type()->isSubtypeOf(
      *c10::OptionalType::ofTensor());
}

std::vector<at::Tensor> Case::flat_tensors() const {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    for (const auto& tensor : tensors_in(arguments_[i])) {
      tensors.push_back(tensor);
    }
    if (arguments_[i].isNone() && is_optional_tensor(i)) {
      tensors.emplace_back();
    }
  }
  return tensors;
}

std::vector<TensorArg> Case::tensor_args() const {
  std::vector<TensorArg> args(tensors_.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const auto& tensor = tensors_[i];
    if (tensor.defined()) {
      args[i] = {
          Sizes(tensor.sizes()),
          Sizes(tensor.strides()),
          tensor.scalar_type(),
          true};
    }
  }
  return args;
}

// A fresh stack: copies of `tensors` where the sample has tensors.
torch::jit::Stack Case::with_tensors(
    const std::vector<at::Tensor>& tensors) const {
  torch::jit::Stack stack(arguments_);
  size_t next = 0;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      stack[i] = tensors[next++].clone();
    } else if (stack[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (size_t k = 0; k < arguments_[i].toTensorVector().size(); ++k) {
        list.push_back(tensors[next++].clone());
      }
      stack[i] = list;
    } else if (stack[i].isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& given : arguments_[i].toOptionalTensorVector()) {
        const auto& tensor = tensors[next++];
        list.push_back(
            given.has_value() ? std::optional(tensor.clone()) : std::nullopt);
      }
      stack[i] = list;
    } else if (stack[i].isNone() && is_optional_tensor(i)) {
      ++next;
    }
  }
  return stack;
}

void Case::put_local_arguments(
    torch::jit::Stack& stack,
    const DeviceMesh& mesh,
    int64_t rank,
    const Placed& in,
    const Placed& out) const {
  std::vector<Placements> inputs;
  std::vector<Placements> outputs;
  for (const auto& placement : in) {
    inputs.push_back({placement});
  }
  for (const auto& placement : out) {
    outputs.push_back({placement});
  }
  const LocalView view{mesh, rank, inputs, outputs, output_sizes_};
  for (const auto& argument : rule_.local_arguments) {
    const auto index =
        op_.schema().argumentIndexWithName(argument.name).value();
    stack[index] = argument.value(call_, view);
  }
}

}  // namespace tessera::testing
