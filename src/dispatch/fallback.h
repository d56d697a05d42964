// The fallback: an op that no row serves runs on gathered inputs. That is
// always right, and costs what the gathering costs.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

#include "dispatch/op_info.h"
#include "tessera/spec.h"

namespace tessera::detail {

// Whether the op, without a rule, is refused in every scope: it changes what a
// tensor's storage is, or answers only for one process.
bool is_never_gathered(std::string_view name);

// Throws c10::NotImplementedError: the op has no rule.
[[noreturn]] void refuse_without_rule(const OpInfo& op);

// `value` copied into memory of these strides; itself if the strides leave gaps
// or overlap.
at::Tensor in_strides(const at::Tensor& value, SizesRef strides);

// Takes the op's arguments from the stack, gathers those that are sharded and
// reduces those that are pending, runs the op on every rank and leaves its
// results there, replicated. What the op writes keeps its layout: each rank
// takes its part of the value. Results of view ops are copies where the base
// was gathered. Warns once an op. Throws c10::NotImplementedError in a strict
// scope, for ops that change a tensor's storage or look at a rank's own state,
// and where the op would write a pending reduction. Communicates.
void run_on_gathered(const OpInfo& op, torch::jit::Stack* stack);

}  // namespace tessera::detail
