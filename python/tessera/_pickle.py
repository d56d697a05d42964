"""Pickling and torch.save: each process keeps the shards that live in it.

All that is written is plain tensors, numbers and text, so that
torch.load(..., weights_only=True) reads it. The mesh is made again in the world
that is entered when the file is read.
"""

from typing import Any

import torch

from tessera import _C
from tessera._world import rebuild_mesh
from tessera.placement_types import (
    MaskPartial,
    Partial,
    Placement,
    Replicate,
    Shard,
)


def reduce_dtensor(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    """What Tensor.__reduce_ex__ gives for a distributed tensor."""
    mesh = tensor.device_mesh
    with torch.no_grad():
        shards = [shard.detach() for shard in tensor.shards()]
    return (
        rebuild_dtensor,
        (
            shards,
            (mesh.device_type, mesh.mesh.tolist(), mesh.mesh_dim_names),
            [_write(placement) for placement in tensor.placements],
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.requires_grad,
        ),
    )


def rebuild_dtensor(
    shards, mesh, placements, shape, stride, requires_grad
) -> torch.Tensor:
    """The inverse of reduce_dtensor. Does not communicate."""
    tensor = _C.from_local(
        shards,
        rebuild_mesh(*mesh),
        [_read(placement) for placement in placements],
        shape=shape,
        stride=stride,
    )
    return tensor.requires_grad_(requires_grad)


def _write(placement: Placement) -> tuple[Any, ...]:
    if isinstance(placement, MaskPartial):
        return ("M", placement.offset_shape, placement.offset_dim)
    if isinstance(placement, Partial):
        return ("P", placement.reduce_op)
    if isinstance(placement, Shard):
        return ("S", placement.dim)
    return ("R",)


def _read(written: tuple[Any, ...]) -> Placement:
    kind, *values = written
    if kind == "M":
        return MaskPartial(offset_shape=values[0], offset_dim=values[1])
    if kind == "P":
        return Partial(values[0])
    if kind == "S":
        return Shard(values[0])
    return Replicate()


torch.serialization.add_safe_globals([rebuild_dtensor])
