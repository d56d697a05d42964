// What an op sends to other ranks by itself, and the scope that forbids it.
#pragma once

#include <cstdint>
#include <string_view>

#include "dispatch/op_info.h"
#include "plan/redistribute_plan.h"
#include "tessera/spec.h"

namespace tessera::detail {

// Before an op redistributes a tensor by itself. Throws c10::Error in an
// ExplicitCommunication scope if a step of the plan communicates; names the op,
// the tensor, the steps and the bytes that a rank hands over.
void check_implicit_move(
    std::string_view op,
    std::string_view tensor,
    const Spec& from,
    const RedistributePlan& plan);

void check_implicit_move(
    std::string_view op,
    std::string_view tensor,
    const Spec& from,
    PlacementsRef to);

// The same for an argument of the op, by its number in the schema.
void check_implicit_move(
    const OpInfo& op,
    size_t argument,
    const Spec& from,
    const RedistributePlan& plan);

// Communication that is no redistribution of one tensor.
struct ImplicitExchange {
  std::string_view does;     // "exchange ...": completes "would"
  int64_t bytes;             // that a rank hands over, at most
  std::string_view instead;  // "Call ...": what the program may write
};

// Before an op communicates by itself in such a way. Throws c10::Error in an
// ExplicitCommunication scope.
void check_implicit_exchange(
    std::string_view op, const ImplicitExchange& exchange);

}  // namespace tessera::detail
