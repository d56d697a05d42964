"""torch.amp.GradScaler on sparse gradients of tables with sharded rows.

Each rank has entries of its own: the scaler looks at the shards, and all ranks
learn whether any entry is not finite, or some would skip a step that others take.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from tessera import _C
from tessera.placement_types import Partial


def _has_sharded_rows(grad: torch.Tensor | None) -> bool:
    return (
        grad is not None
        and grad.is_sparse
        and _C.is_dtensor(grad)
        and any(p.is_shard(0) for p in grad.placements)
    )


def _unscale(
    grad: torch.Tensor, found: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    """Unscales the shards that live here; `found` is set on all ranks alike."""
    mesh = grad.device_mesh
    part = found.clone()
    for shard in grad.shards():
        torch._amp_foreach_non_finite_check_and_unscale_(
            [shard._values()], part, inv_scale.to(part.device)
        )
    parts = _C.from_local(part, mesh, [Partial("max")] * mesh.ndim)
    found.copy_(parts.full_tensor())


def _by_shards(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def unscale(
        self: Any,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> Any:
        sharded = [
            (parameter, parameter.grad)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if _has_sharded_rows(parameter.grad)
        ]
        if not sharded:
            return plain(self, optimizer, inv_scale, found_inf, allow_fp16)
        for parameter, grad in sharded:
            if not allow_fp16 and grad.dtype == torch.float16:
                raise ValueError("Attempting to unscale FP16 gradients.")
            parameter.grad = None
        try:
            by_device = plain(self, optimizer, inv_scale, found_inf, allow_fp16)
        finally:
            for parameter, grad in sharded:
                parameter.grad = grad
        for parameter, grad in sharded:
            if grad.dtype == torch.float16:
                # Sums of entries of one row may not be finite.
                parameter.grad = grad = grad.coalesce()
            if grad.device not in by_device:
                by_device[grad.device] = found_inf.to(grad.device, copy=True)
            _unscale(grad, by_device[grad.device], inv_scale)
        return by_device

    return unscale


scaler = torch.amp.GradScaler
scaler._unscale_grads_ = _by_shards(scaler._unscale_grads_)
