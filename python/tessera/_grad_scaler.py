"""torch.amp.GradScaler looks at the values of sparse gradients.

Those of a table with sharded rows live on its ranks: each sees its own. All must
know whether any of them is not finite, or some would skip a step that others take.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from tessera import _C
from tessera.placement_types import Partial


def _meshes_of_sharded_rows(optimizer: torch.optim.Optimizer) -> list[Any]:
    meshes: list[Any] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is None or not grad.is_sparse or not _C.is_dtensor(grad):
                continue
            sharded = any(p.is_shard(0) for p in grad.placements)
            if sharded and grad.device_mesh not in meshes:
                meshes.append(grad.device_mesh)
    return meshes


def _agreeing(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def unscale(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        found_by_device = plain(self, optimizer, *args, **kwargs)
        for mesh in _meshes_of_sharded_rows(optimizer):
            for found in found_by_device.values():
                parts = _C.from_local(found, mesh, [Partial("max")] * mesh.ndim)
                found.copy_(parts.full_tensor())
        return found_by_device

    return unscale


scaler = torch.amp.GradScaler
scaler._unscale_grads_ = _agreeing(scaler._unscale_grads_)
