#include "dispatch/infer.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dispatch/tangents.h"

namespace tessera::detail {

namespace {

// Every op has a computed meta kernel, if only the fallback that throws: ask
// for the kernels that do something. Composite ones do, unless they lead to an
// op that has none; for elementwise ops there is a surer way.
bool has_meta_kernel(const OpInfo& op, const Rule& rule) {
  using Key = c10::DispatchKey;
  const auto has = [&](Key key) {
    return op.handle.hasKernelForDispatchKey(key);
  };
  return has(Key::Meta) || (!rule.elementwise &&
                            (has(Key::CompositeExplicitAutograd) ||
                             has(Key::CompositeExplicitAutogradNonFunctional) ||
                             has(Key::CompositeImplicitAutograd)));
}

at::Tensor meta_tensor(const TensorArg& arg, const at::Tensor& original) {
  // Meta kernels that are written in Python (most are, where torch's Python
  // package is loaded) take a number by its value, which a meta tensor lacks.
  if (original.unsafeGetTensorImpl()->is_wrapped_number()) {
    // Without what autograd knows of it, tangents in particular.
    auto number = original.detach();
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }
  return at::empty_strided(
      arg.sizes,
      arg.strides,
      at::TensorOptions().dtype(arg.dtype).device(c10::kMeta));
}

std::vector<at::Tensor> meta_tensors(
    const CallTensors& tensors, const OpCall& call) {
  std::vector<at::Tensor> metas(call.tensor_count());
  for (size_t i = 0; i < metas.size(); ++i) {
    if (call.tensor(i).defined) {
      metas[i] = meta_tensor(call.tensor(i), tensors.tensors[i]);
    }
  }
  return metas;
}

InferredOutput inferred(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  return {
      true,
      Sizes(tensor.sizes()),
      Sizes(tensor.strides()),
      tensor.scalar_type(),
      tensor.layout() == at::kStrided ? tensor.storage_offset() : 0};
}

bool mixes_dtypes(const OpCall& call) {
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.defined && tensor.dtype != call.tensor(0).dtype) {
      return true;
    }
  }
  return false;
}

// Calls the meta kernel. Where tensors may have tangents, Python asks for that
// of a tensor that it prints, by autograd, which our kernels leave out; and it
// prints meta tensors while it looks for the overload that a meta kernel in
// Python is. There autograd is put back, and records nothing.
void call_meta_kernel(const OpInfo& op, torch::jit::Stack& stack) {
  if (!may_have_tangents()) {
    return op.handle.callBoxed(&stack);
  }
  const c10::AutoGradMode no_grad(false);
  const c10::AutoFwGradMode no_tangents(false);
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard with_autograd(
      keys.included_,
      keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  op.handle.redispatchBoxed(
      c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
}

InferredOutputs from_meta_kernel(
    const OpInfo& op,
    c10::ArrayRef<c10::IValue> args,
    const CallTensors& tensors,
    const OpCall& call) {
  torch::jit::Stack stack(args.begin(), args.end());
  // Held while the results are read: ATen 2.11 answers an op that writes to
  // several tensors with references to those it has dropped from the stack.
  const auto metas = meta_tensors(tensors, call);
  put_tensors(stack, tensors.slots, metas);
  for (auto& value : stack) {
    if (value.isDevice()) {
      value = c10::Device(c10::kMeta);
    }
  }
  call_meta_kernel(op, stack);

  InferredOutputs outputs;
  for (size_t r = 0; r < op.returns.size(); ++r) {
    std::vector<InferredOutput> list;
    if (op.returns[r].kind == ReturnInfo::Kind::NotATensor) {
      // Numbers and such are taken from the first shard's result.
    } else if (op.returns[r].is_list) {
      for (const auto& element : stack[r].toListRef()) {
        list.push_back(inferred(element.toTensor()));
      }
    } else {
      list.push_back(inferred(stack[r].toTensor()));
    }
    outputs.returns.push_back(std::move(list));
  }
  return outputs;
}

// Says that the dtypes are not known. The first argument's is a guess that
// serves until a result tells.
void guess_dtypes(InferredOutputs& outputs, const OpCall& call) {
  outputs.dtypes_known = false;
  for (auto& list : outputs.returns) {
    for (auto& output : list) {
      output.dtype = call.tensor(0).dtype;
    }
  }
}

// What TensorIterator would allocate for these inputs.
InferredOutputs from_broadcasting(
    const OpInfo& op, const CallTensors& tensors, const OpCall& call) {
  const auto metas = meta_tensors(tensors, call);
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .check_all_same_device(false)
      .declare_static_dtype_and_device(c10::kFloat, c10::kMeta)
      .add_owned_output(at::Tensor());
  for (size_t i = 0; i < metas.size(); ++i) {
    const bool is_output =
        op.handle.schema().arguments()[tensors.slots[i].argument].is_out();
    if (metas[i].defined() && !is_output) {
      config.add_owned_const_input(metas[i]);
    }
  }
  const auto output = inferred(config.build().output(0));
  InferredOutputs outputs;
  outputs.returns.assign(op.returns.size(), {output});
  guess_dtypes(outputs, call);
  return outputs;
}

// Of arguments that ATen refuses a rule may make anything.
void check_sizes(const OpInfo& op, SizesRef sizes) {
  for (const int64_t size : sizes) {
    TORCH_CHECK(
        size >= 0,
        "[",
        op.display_name,
        "] expected sizes and paddings that leave a result, but it would have "
        "shape ",
        sizes);
  }
}

InferredOutputs from_sizes(
    const OpInfo& op, const std::vector<Sizes>& sizes, const OpCall& call) {
  TORCH_INTERNAL_ASSERT(
      sizes.size() == op.returns.size(),
      "the rule of ",
      op.display_name,
      " gives ",
      sizes.size(),
      " output sizes for ",
      op.returns.size(),
      " results");
  InferredOutputs outputs;
  for (size_t r = 0; r < sizes.size(); ++r) {
    std::vector<InferredOutput> list;
    if (op.returns[r].kind != ReturnInfo::Kind::NotATensor) {
      check_sizes(op, sizes[r]);
      list.push_back(
          {true,
           sizes[r],
           row_major_strides(sizes[r]),
           c10::ScalarType::Undefined});
    }
    outputs.returns.push_back(std::move(list));
  }
  guess_dtypes(outputs, call);
  return outputs;
}

}  // namespace

InferredOutputs infer_outputs(
    const OpInfo& op,
    const Rule& rule,
    c10::ArrayRef<c10::IValue> args,
    const CallTensors& tensors,
    const OpCall& call) {
  if (rule.output_sizes) {
    if (auto sizes = rule.output_sizes(call); !sizes.empty()) {
      return from_sizes(op, sizes, call);
    }
  }
  if (has_meta_kernel(op, rule)) {
    auto outputs = from_meta_kernel(op, args, tensors, call);
    // Meta kernels of torch's Python package promote where some kernels keep
    // the dtype of their first argument (huber_loss): a result tells.
    outputs.dtypes_known = !(rule.elementwise && mixes_dtypes(call));
    return outputs;
  }
  if (rule.elementwise) {
    return from_broadcasting(op, tensors, call);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.only_writes,
      "Operator ",
      op.display_name,
      " has neither a meta kernel nor output_sizes in its rule: the shape of "
      "its result is unknown");
  InferredOutputs none;
  none.returns.resize(op.returns.size());
  return none;
}

}  // namespace tessera::detail
