#include "dispatch/trial_call.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "core/terms.h"
#include "dispatch/float_terms.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

constexpr int64_t kMostElements = int64_t{1} << 16;

class SilentWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// What stands for a tensor of the call on a rank.
at::Tensor shard_stand_in(const TrialCall& trial, size_t i, int64_t position) {
  const auto& given = trial.tensors.tensors[i];
  const auto& spec = trial.plan.inputs[i];
  if (spec == nullptr) {
    return {};
  }
  if (!is_dtensor(given)) {
    return given.unsafeGetTensorImpl()->is_wrapped_number() ? given
                                                            : given.clone();
  }
  const auto& placements = trial.chosen.inputs[i];
  const auto shape =
      local_shape(spec->sizes, trial.plan.mesh, placements, position);
  const at::TensorOptions options(shard_dtype_in(*spec, placements));
  // Integers may be indices: 0 is always one.
  return c10::isIntegralType(spec->dtype, /*includeBool=*/true)
             ? at::zeros(shape, options)
             : at::ones(shape, options);
}

bool is_small(const TrialCall& trial, int64_t position) {
  int64_t elements = 0;
  const auto add = [&](SizesRef sizes, PlacementsRef placements) {
    elements += c10::multiply_integers(
        local_shape(sizes, trial.plan.mesh, placements, position));
  };
  for (size_t i = 0; i < trial.plan.inputs.size(); ++i) {
    if (trial.plan.inputs[i] != nullptr) {
      add(trial.plan.inputs[i]->sizes, trial.chosen.inputs[i]);
    }
  }
  for (size_t o = 0; o < trial.output_sizes.size(); ++o) {
    add(trial.output_sizes[o], trial.chosen.outputs[o]);
  }
  return elements <= kMostElements;
}

bool throws_at(const TrialCall& trial, int64_t position) {
  if (!is_small(trial, position)) {
    return false;
  }
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < trial.plan.inputs.size(); ++i) {
    tensors.push_back(shard_stand_in(trial, i, position));
  }
  torch::jit::Stack local(trial.args.begin(), trial.args.end());
  put_tensors(local, trial.plan.slots, tensors);
  const LocalView view{
      trial.plan.mesh,
      position,
      trial.chosen.inputs,
      trial.chosen.outputs,
      trial.output_sizes};
  for (const auto& argument : trial.op.rule()->local_arguments) {
    const auto index =
        trial.call.schema().argumentIndexWithName(argument.name).value();
    local[index] = argument.value(trial.call, view);
  }
  try {
    if (trial.plan.in_float != nullptr) {
      call_in_float(trial.op, trial.plan, local);
    } else {
      trial.op.handle.callBoxed(&local);
    }
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

}  // namespace

Throws try_shards(const TrialCall& trial) {
  if (trial.op.handle.hasTag(at::Tag::nondeterministic_seeded)) {
    return {};
  }
  SilentWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  const auto last = static_cast<int64_t>(trial.plan.mesh.size()) - 1;
  return {throws_at(trial, 0), throws_at(trial, last)};
}

}  // namespace tessera::detail
