#include "dispatch/term_factors.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>

#include "dispatch/autograd.h"

namespace tessera::detail {

namespace {

bool is_inexact(c10::ScalarType dtype) {
  return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
}

// Whether a sum or an average is pending on several ranks.
bool adds_up(const DeviceMesh& mesh, PlacementsRef placements) {
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].is_partial() && mesh.shape()[m] > 1 &&
        (placements[m].reduce_op() == ReduceOp::Sum ||
         placements[m].reduce_op() == ReduceOp::Avg)) {
      return true;
    }
  }
  return false;
}

bool is_masked(const Spec& spec) {
  for (size_t m = 0; m < spec.placements.size(); ++m) {
    if (spec.placements[m].kind() == Placement::Kind::MaskPartial &&
        spec.mesh.shape()[m] > 1) {
      return true;
    }
  }
  return false;
}

bool is_replicated(const Spec& spec) {
  return std::all_of(
      spec.placements.begin(), spec.placements.end(), [](const auto& p) {
        return p.is_replicate();
      });
}

const at::Tensor& element_of(
    const c10::IValue& value, int32_t element, at::Tensor& held) {
  held = element < 0 ? value.toTensor() : value.toListRef()[element].toTensor();
  return held;
}

bool is_finite(const at::Tensor& factor, bool divides) {
  at::Tensor value = factor;
  if (is_dtensor(factor)) {
    const auto& shards = current_shards(factor);
    if (shards.empty()) {
      return true;
    }
    value = shards[0];
  }
  if (divides && value.eq(0).any().item<bool>()) {
    return false;
  }
  // One fast pass says so of nearly all.
  const auto sum = value.sum();
  return at::isfinite(sum).item<bool>() ||
         at::isfinite(value).all().item<bool>();
}

bool is_finite(const at::Scalar& factor, bool divides) {
  if (factor.isComplex()) {
    const auto value = factor.toComplexDouble();
    return std::isfinite(value.real()) && std::isfinite(value.imag()) &&
           !(divides && value == c10::complex<double>(0));
  }
  const double value = factor.toDouble();
  return std::isfinite(value) && !(divides && value == 0);
}

// What a tensor was before it was reduced takes the terms of what it is now.
void write_terms(const at::Tensor& pending, const at::Tensor& reduced) {
  const auto& meta = distributed_meta(pending);
  Placements terms = meta.spec->placements;
  for (auto& placement : terms) {
    if (placement.kind() == Placement::Kind::MaskPartial) {
      placement = Partial(ReduceOp::Sum);
    }
  }
  const auto back = redistribute(reduced, terms);
  for (size_t i = 0; i < meta.unchecked_shards().size(); ++i) {
    at::Tensor shard = meta.unchecked_shards()[i];
    shard.copy_(current_shards(back)[i]);
  }
}

}  // namespace

std::shared_ptr<const TermFactors> plan_term_factors(
    const OpInfo& op,
    const OpPlan& plan,
    c10::ArrayRef<c10::IValue> args,
    const PropagationResult& chosen) {
  bool adds = false;
  bool masked = false;
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const auto& spec = plan.inputs[i];
    if (spec != nullptr && is_inexact(spec->dtype) &&
        adds_up(plan.mesh, spec->placements) &&
        adds_up(plan.mesh, chosen.inputs[i])) {
      adds = true;
      masked |= is_masked(*spec);
    }
  }
  if (!adds || op.is_view) {
    return nullptr;
  }
  const auto& arguments = op.handle.schema().arguments();
  const auto& divisors = op.rule()->divisors;
  TermFactors factors;
  const auto add = [&](const TensorSlot& slot) {
    const bool divides = std::find(
                             divisors.begin(),
                             divisors.end(),
                             arguments[slot.argument].name()) != divisors.end();
    factors.all.push_back({slot, divides});
  };
  for (size_t a = 0; a < args.size(); ++a) {
    if (op.args[a] == ArgKind::Number && args[a].isScalar()) {
      add({static_cast<uint32_t>(a), -1});
    }
  }
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const auto& spec = plan.inputs[i];
    const auto& slot = plan.slots[i];
    if (spec == nullptr || !is_inexact(spec->dtype) || !is_replicated(*spec) ||
        op.written_args[slot.argument] ||
        !(spec->dim() == 0 || (masked && spec->numel() > 0))) {
      continue;
    }
    at::Tensor held;
    if (element_of(args[slot.argument], slot.element, held).is_cpu()) {
      add(slot);
    }
  }
  return factors.all.empty()
             ? nullptr
             : std::make_shared<const TermFactors>(std::move(factors));
}

bool are_finite(const TermFactors& factors, c10::ArrayRef<c10::IValue> args) {
  return std::all_of(
      factors.all.begin(), factors.all.end(), [&](const TermFactor& factor) {
        const auto& value = args[factor.slot.argument];
        if (value.isScalar()) {
          return is_finite(value.toScalar(), factor.divides);
        }
        at::Tensor held;
        return is_finite(
            element_of(value, factor.slot.element, held), factor.divides);
      });
}

void run_reduced(
    const OpInfo& op,
    torch::jit::Stack& stack,
    void (*run)(const OpInfo&, torch::jit::Stack&)) {
  const size_t first = stack.size() - op.args.size();
  const torch::jit::Stack args(stack.begin() + first, stack.end());
  const auto call = call_tensors(op, args);
  std::vector<at::Tensor> reduced = call.tensors;
  for (auto& tensor : reduced) {
    if (is_dtensor(tensor)) {
      tensor = redistribute(
          tensor,
          grad_placements_of(distributed_meta(tensor).spec->placements),
          op.name);
    }
  }
  torch::jit::Stack replaced = args;
  put_tensors(replaced, call.slots, reduced);
  std::copy(replaced.begin(), replaced.end(), stack.begin() + first);
  run(op, stack);
  for (size_t i = 0; i < reduced.size(); ++i) {
    if (op.written_args[call.slots[i].argument] &&
        !reduced[i].is_same(call.tensors[i])) {
      write_terms(call.tensors[i], reduced[i]);
    }
  }
  for (size_t r = 0; r < op.returns.size(); ++r) {
    if (op.returns[r].kind == ReturnInfo::Kind::Written) {
      stack[first + r] = args[op.returns[r].argument];
    }
  }
}

}  // namespace tessera::detail
