// The differentiable boundary between plain and distributed tensors, and
// between layouts.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>
#include <vector>

#include "dispatch/tensor.h"

namespace tessera::detail {

// The layout of the gradient of a tensor with these placements: a pending
// reduction's gradient is replicated.
Placements grad_placements_of(PlacementsRef placements);

// A gradient in the layout that is asked for (without pending reductions).
// Formulas may hand over a plain tensor of the global shape, equal on every
// rank: each takes its part.
at::Tensor grad_in_layout(
    const at::Tensor& grad, const DeviceMesh& mesh, PlacementsRef placements);

// A distributed tensor of these shards; each shard gets its part of the
// gradient. `shared`: all shards are one tensor, which gets the gradient once.
at::Tensor from_shards(const SpecPtr& spec, at::TensorList shards, bool shared);

// The shards that live here.
std::vector<at::Tensor> to_shards(
    const at::Tensor& tensor, PlacementsRef grad_placements);

// The value of a replicated tensor, for all ranks that live here at once: each
// of them gets the gradient. Requires: there is one.
at::Tensor to_whole(
    const at::Tensor& replicated, PlacementsRef grad_placements);

// The cause of a redistribution that the program wrote.
inline constexpr std::string_view kAskedFor = "tessera::redistribute";

// The tensor in another layout; itself where nothing changes. Collectives are
// counted for `cause`: an op that moves its argument by itself, which a scope
// of explicit communication forbids, or, by default, one who asked for it.
at::Tensor redistribute(
    const at::Tensor& tensor,
    PlacementsRef to,
    std::string_view cause = kAskedFor);

// The same tensor for an op that is to be recorded: whatever the layout of the
// gradient that the op's formula returns, it goes on in the tensor's own.
// Requires: the tensor is distributed and requires grad.
at::Tensor with_grad_in_layout(const at::Tensor& tensor);

// ATen's own derivative formula of an op, which goes on to our kernel.
c10::SafeKernelFunction aten_formula(const c10::OperatorHandle& op);

}  // namespace tessera::detail
