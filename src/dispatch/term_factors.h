// What the terms of a pending sum are multiplied with, or divided by. Terms
// times infinity are infinite, or not numbers, where the sum times infinity is
// another number: with such a factor the sum is taken first.
#pragma once

#include <memory>
#include <vector>

#include "dispatch/op_plan.h"
#include "plan/propagate.h"

namespace tessera::detail {

struct TermFactor {
  TensorSlot slot;  // element -1 where the argument is a number
  bool divides;     // zero is no better than infinity
};

struct TermFactors {
  std::vector<TermFactor> all;
};

// The factors that every rank can look at by itself and finds the same:
// numbers, and replicated tensors on the CPU, of one element or, where the
// terms are rows of a lookup among zeros, of any number. nullptr where there is
// none.
std::shared_ptr<const TermFactors> plan_term_factors(
    const OpInfo& op,
    const OpPlan& plan,
    c10::ArrayRef<c10::IValue> args,
    const PropagationResult& chosen);

bool are_finite(const TermFactors& factors, c10::ArrayRef<c10::IValue> args);

// The call with its pending sums reduced, as `run` carries it out. What is
// written in place keeps its layout. Leaves the results in the stack.
// Communicates.
void run_reduced(
    const OpInfo& op,
    torch::jit::Stack& stack,
    void (*run)(const OpInfo&, torch::jit::Stack&));

}  // namespace tessera::detail
