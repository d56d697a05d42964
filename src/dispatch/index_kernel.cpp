#include "dispatch/index_kernel.h"

#include "comm/comm_event.h"

namespace tessera::detail {

bool differs_over_ranks(const at::Tensor& indices) {
  if (!is_dtensor(indices)) {
    return false;
  }
  const Spec& spec = *distributed_meta(indices).spec;
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (spec.placements[m].is_shard() && spec.mesh.size(m) > 1) {
      return true;
    }
  }
  return false;
}

void run_agreed(
    const at::Tensor& indices,
    std::string_view cause,
    c10::function_ref<void()> body) {
  if (!differs_over_ranks(indices)) {
    body();
    return;
  }
  const DeviceMesh mesh = distributed_meta(indices).spec->mesh;
  std::string error;
  try {
    body();
  } catch (const c10::IndexError& found) {
    error = found.what_without_backtrace();
  }
  const CommCauseGuard guard(cause);
  collectives(mesh).agree(mesh, error, ErrorKind::Index);
}

void IndexKernel::operator()(
    const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
  // Held: the stack is overwritten.
  const at::Tensor indices =
      (*stack)[stack->size() - op_.args.size() + indices_].toTensor();
  run_agreed(indices, op_.name, [&] { run_op(op_, stack); });
}

torch::CppFunction index_kernel(const char* name, size_t indices) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<IndexKernel>(
      c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), indices));
}

torch::CppFunction boxed_kernel(const char* name) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OpKernel>(
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "")));
}

}  // namespace tessera::detail
