#include "dispatch/shared_draw.h"

#include <ATen/Context.h>

#include <mutex>

#include "dispatch/random_stream.h"

namespace tessera::detail {

namespace {

// The process's generator starts from `seed`, and afterwards goes on as if
// nothing had been drawn.
class SeededGenerator {
 public:
  SeededGenerator(at::Generator generator, uint64_t seed)
      : generator_(std::move(generator)) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SeededGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  SeededGenerator(const SeededGenerator&) = delete;
  SeededGenerator& operator=(const SeededGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

bool is_generator(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  const auto type = optional ? optional->getElementType() : argument.type();
  return type->kind() == c10::TypeKind::GeneratorType;
}

// Where the op draws: on the device of its first tensor.
std::optional<c10::Device> device_of_call(const torch::jit::Stack& local) {
  for (const auto& value : local) {
    if (value.isTensor() && value.toTensor().defined()) {
      return value.toTensor().device();
    }
    if (value.isTensorList() && !value.toListRef().empty()) {
      return value.toListRef()[0].toTensor().device();
    }
  }
  return std::nullopt;
}

}  // namespace

SharedDraw::SharedDraw(
    const OpInfo& op, c10::ArrayRef<c10::IValue> args, const DeviceMesh& mesh)
    : op_(op), draws_(op.handle.hasTag(at::Tag::nondeterministic_seeded)) {
  const auto& arguments = op.handle.schema().arguments();
  for (size_t i = 0; i < args.size(); ++i) {
    if (!is_generator(arguments[i])) {
      continue;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        args[i].isNone() || !args[i].toGenerator().defined(),
        "[",
        op.display_name,
        "] a generator of one's own is not supported on distributed tensors: "
        "ranks must draw in step; seed with tessera::manual_seed");
    draws_ = true;
    generator_argument_ = static_cast<int64_t>(i);
  }
  if (draws_) {
    seed_ = next_random_seed(mesh);
  }
}

void SharedDraw::run(torch::jit::Stack& local) {
  const auto device = draws_ ? device_of_call(local) : std::nullopt;
  if (!device.has_value() || device->is_meta()) {
    op_.handle.callBoxed(&local);
    return;
  }
  const auto& generator = at::globalContext().defaultGenerator(*device);
  if (generator_argument_ >= 0) {
    auto own = generator.clone();
    own.set_current_seed(seed_);
    local[generator_argument_] = own;
    op_.handle.callBoxed(&local);
  } else {
    const SeededGenerator seeded(generator, seed_);
    op_.handle.callBoxed(&local);
  }
}

}  // namespace tessera::detail
