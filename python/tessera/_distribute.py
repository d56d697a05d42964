"""Laying tensors and modules out over a mesh."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tessera import _C
from tessera._world import mesh_of

__all__ = [
    "distribute_",
    "distribute_module",
    "distribute_tensor",
    "implicit_replication",
]


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh=None,
    placements: Sequence[Any] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """Lays a plain tensor out over a mesh; replicated without placements.

    The value is that of the first rank of each mesh dimension, which
    scatters it. With `src_data_rank=None` every rank is known to hold the same value:
    each takes its part of it and nothing is sent. The result keeps
    requires_grad and is a leaf; a parameter gives a parameter.
    """
    result = _C.distribute_tensor(
        tensor, device_mesh, placements, _same_everywhere(src_data_rank)
    )
    if isinstance(tensor, nn.Parameter) and result is not tensor:
        result = nn.Parameter(result.detach(), tensor.requires_grad)
    return result


def distribute_(
    tensor: torch.Tensor,
    device_mesh=None,
    placements: Sequence[Any] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """distribute_tensor in place: whoever holds the tensor goes on with it.

    That includes optimizers made before. Returns the tensor.
    """
    _C.distribute_(
        tensor, device_mesh, placements, _same_everywhere(src_data_rank)
    )
    return tensor


def _same_everywhere(src_data_rank: int | None) -> bool:
    if src_data_rank not in (0, None):
        raise NotImplementedError(
            "[distribute_tensor] expected src_data_rank 0 or None, got "
            f"{src_data_rank}: only the first rank can scatter its value"
        )
    return src_data_rank is None


def distribute_module(
    module: nn.Module,
    device_mesh=None,
    partition_fn: Callable[[str, nn.Module, Any], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Lays the parameters and buffers of a module out over a mesh, in place.

    `partition_fn(name, module, mesh)` is called for every submodule; what it
    leaves plain becomes replicated, what is distributed already stays as it is.
    `input_fn(module, inputs, mesh)` and `output_fn(module, outputs, mesh)` wrap
    the forward. Returns the module.
    """
    mesh = mesh_of(device_mesh, "distribute_module")
    before_forward = _module_fn(input_fn, "input_fn")
    after_forward = _module_fn(output_fn, "output_fn")
    # All partitions come first: a tied parameter is laid out by whichever
    # module cares for it, not replicated by the first that holds it.
    if partition_fn is not None:
        for name, submodule in module.named_modules():
            partition_fn(name, submodule, mesh)
    for tensor in (*module.parameters(), *module.buffers()):
        if not _C.is_dtensor(tensor):
            _C.distribute_(tensor, mesh, None, False)
    if before_forward is not None:
        module.register_forward_pre_hook(
            lambda this, inputs: before_forward(this, inputs, mesh)
        )
    if after_forward is not None:
        module.register_forward_hook(
            lambda this, _, outputs: after_forward(this, outputs, mesh)
        )
    return module


def _module_fn(fn: Callable[..., Any] | None, role: str):
    """The three-argument form of an input or output function."""
    if fn is None:
        return None
    count = len(inspect.signature(fn).parameters)
    if count == 3:
        return fn
    if count != 2:
        raise ValueError(
            f"[distribute_module] expected {role} to take 3 arguments "
            f"(module, {role[:-3]}s, device_mesh), got {count}"
        )
    warnings.warn(
        f"[distribute_module] Deprecating {role} that takes two arguments "
        "(tensors, device_mesh): give it three, (module, tensors, device_mesh)",
        FutureWarning,
        stacklevel=3,
    )
    return lambda module, tensors, mesh: fn(tensors, mesh)


def implicit_replication() -> _C.ImplicitReplication:
    """In this scope, plain tensors among distributed ones are replicated.

    with implicit_replication():
        y = distributed + plain
    """
    return _C.ImplicitReplication()
