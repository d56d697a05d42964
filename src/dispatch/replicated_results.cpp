#include "dispatch/replicated_results.h"

#include "dispatch/infer.h"
#include "dispatch/plain_args.h"

namespace tessera::detail {

ReplicatedResults::ReplicatedResults(const OpInfo& op, const DeviceMesh& mesh)
    : op_(op),
      mesh_(mesh),
      replicated_(mesh.ndim(), Replicate()),
      returns_(op.returns.size()) {}

void ReplicatedResults::take(torch::jit::Stack& local) {
  for (size_t r = 0; r < returns_.size(); ++r) {
    const auto& info = op_.returns[r];
    auto& ret = returns_[r];
    if (info.kind == ReturnInfo::Kind::Written) {
      continue;
    }
    if (info.kind == ReturnInfo::Kind::NotATensor) {
      ret.plain = std::move(local[r]);
    } else if (info.is_list) {
      size_t index = 0;
      for (const auto& element : local[r].toListRef()) {
        take(ret, index++, element.toTensor());
      }
    } else {
      take(ret, 0, local[r].toTensor());
    }
  }
}

void ReplicatedResults::take(
    Return& ret, size_t index, const at::Tensor& tensor) {
  if (index == ret.tensors.size()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !tensor.defined() || tensor.layout() == c10::kStrided,
        "[",
        op_.display_name,
        "] gives a tensor of layout ",
        tensor.layout(),
        ", which distributed tensors do not have: call it on full_tensor() or "
        "to_local()");
    ret.tensors.emplace_back();
    ret.specs.push_back(
        tensor.defined() ? replicated_spec(mesh_, tensor) : nullptr);
  }
  ret.tensors[index].push_back(tensor);
}

void ReplicatedResults::infer(
    c10::ArrayRef<c10::IValue> args, const CallTensors& call) {
  std::vector<TensorArg> tensors(call.tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = call.tensors[i];
    if (tensor.defined()) {
      tensors[i] = {
          Sizes(tensor.sizes()),
          Sizes(tensor.strides()),
          tensor.scalar_type(),
          true};
    }
  }
  InferredOutputs outputs;
  outputs.returns.resize(returns_.size());
  if (!op_.only_writes) {
    const OpCall op_call(op_.handle.schema(), args, std::move(tensors));
    outputs = infer_outputs(op_, Rule{}, args, call, op_call);
  }
  for (size_t r = 0; r < returns_.size(); ++r) {
    TORCH_CHECK(
        op_.returns[r].kind != ReturnInfo::Kind::NotATensor,
        "[",
        op_.display_name,
        "] this rank is outside the mesh ",
        mesh_.str(),
        " and holds no value");
    for (const auto& output : outputs.returns[r]) {
      returns_[r].tensors.emplace_back();
      returns_[r].specs.push_back(
          output.defined ? Spec::make(
                               mesh_,
                               replicated_,
                               output.sizes,
                               output.strides,
                               output.dtype)
                         : nullptr);
    }
  }
}

torch::jit::Stack ReplicatedResults::wrap(
    c10::ArrayRef<c10::IValue> args, const OriginOf& origin) {
  torch::jit::Stack stack;
  for (size_t r = 0; r < returns_.size(); ++r) {
    const auto& info = op_.returns[r];
    auto& ret = returns_[r];
    const auto one = [&](size_t index) -> at::Tensor {
      if (ret.specs[index] == nullptr) {
        return {};
      }
      const auto& spec = ret.specs[index];
      auto& shards = ret.tensors[index];
      auto from = info.kind == ReturnInfo::Kind::View
                      ? origin(info.argument, index, spec, shards)
                      : ViewOrigin();
      return make_distributed(spec, std::move(shards), std::move(from));
    };
    if (info.kind == ReturnInfo::Kind::NotATensor) {
      stack.push_back(std::move(ret.plain));
    } else if (info.kind == ReturnInfo::Kind::Written) {
      stack.push_back(args[info.argument]);
    } else if (info.is_list) {
      c10::List<at::Tensor> list;
      for (size_t i = 0; i < ret.tensors.size(); ++i) {
        list.push_back(one(i));
      }
      stack.emplace_back(std::move(list));
    } else {
      stack.emplace_back(one(0));
    }
  }
  return stack;
}

}  // namespace tessera::detail
