// torch.amp.GradScaler: gradients are unscaled, and every rank learns whether
// one of them is not finite anywhere.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "comm/comm_event.h"
#include "dispatch/autograd.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

constexpr const char* kOp = "aten::_amp_foreach_non_finite_check_and_unscale_";

// A number that every rank knows.
at::Tensor as_plain(const at::Tensor& number) {
  if (!is_dtensor(number)) {
    return number;
  }
  const auto& mesh = distributed_meta(number).spec->mesh;
  const auto whole =
      redistribute(number, Placements(mesh.ndim(), Replicate()), kOp);
  const auto& shards = current_shards(whole);
  TORCH_CHECK(
      !shards.empty(), "[GradScaler] this rank is outside ", mesh.str());
  return shards[0];
}

bool is_pending(const at::Tensor& grad) {
  const auto& placements = distributed_meta(grad).spec->placements;
  return std::any_of(placements.begin(), placements.end(), [](const auto& p) {
    return p.is_partial();
  });
}

// The gradients of one mesh, with a flag a rank.
struct Flags {
  DeviceMesh mesh;
  Shards found;
};

Flags& flags_of(
    std::vector<Flags>& all, const DeviceMesh& mesh, const at::Tensor& like) {
  for (auto& flags : all) {
    if (flags.mesh == mesh) {
      return flags;
    }
  }
  Shards found;
  for (size_t i = 0; i < mesh.local_positions().size(); ++i) {
    found.push_back(at::zeros_like(like));
  }
  all.push_back({mesh, std::move(found)});
  return all.back();
}

// Unscales the shards of a gradient. Terms of a pending sum may be finite where
// the sum is not: the sum is looked at.
void unscale(const at::Tensor& grad, Shards& found, const at::Tensor& scale) {
  begin_write(grad, kOp);
  const auto& meta = distributed_meta(grad);
  if (!is_pending(grad)) {
    for (size_t i = 0; i < current_shards(grad).size(); ++i) {
      at::_amp_foreach_non_finite_check_and_unscale_(
          current_shards(grad)[i], found[i], scale);
    }
    return;
  }
  const Placements replicated(meta.spec->mesh.ndim(), Replicate());
  const auto whole = redistribute(grad, replicated, kOp);
  for (size_t i = 0; i < current_shards(grad).size(); ++i) {
    auto copy = current_shards(whole)[i].clone();
    at::_amp_foreach_non_finite_check_and_unscale_(copy, found[i], scale);
    auto shard = current_shards(grad)[i];
    shard.mul_(scale);
  }
}

void check_and_unscale(
    at::TensorList grads, at::Tensor& found_inf, const at::Tensor& inv_scale) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const CommCauseGuard cause(kOp);
  TORCH_CHECK(
      !is_dtensor(found_inf),
      "[GradScaler] expected found_inf to be a plain tensor, as GradScaler "
      "makes it");
  const auto scale = as_plain(inv_scale);
  std::vector<Flags> all;
  for (const auto& grad : grads) {
    if (is_dtensor(grad)) {
      auto& flags = flags_of(all, distributed_meta(grad).spec->mesh, found_inf);
      unscale(grad, flags.found, scale);
      end_write(grad, kOp);
    } else {
      at::_amp_foreach_non_finite_check_and_unscale_(grad, found_inf, scale);
    }
  }
  for (auto& [mesh, found] : all) {
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      found = collectives(mesh).all_reduce({mesh, m}, found, ReduceOp::Max);
    }
    if (!found.empty()) {
      found_inf.copy_(at::maximum(found_inf, found[0]));
    }
  }
}

}  // namespace

void register_grad_scaler(OpRegistry& ops) {
  ops.own_kernel(
      "_amp_foreach_non_finite_check_and_unscale_", &check_and_unscale);
}

}  // namespace tessera::detail
