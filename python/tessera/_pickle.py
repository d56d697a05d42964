"""Pickling and torch.save: each process keeps the shards that live in it.

All that is written is plain tensors, numbers and text, so that
torch.load(..., weights_only=True) reads it. The file says whose shards it holds
and how many ranks the world had. The mesh is made again in the world that is
entered when the file is read, and each rank takes its own shard, or is told that
the file does not hold it.
"""

from typing import Any

import torch

from tessera import _C
from tessera._world import ensure, rebuild_mesh
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
            (mesh._world_size, mesh.local_ranks),
        ),
    )


def rebuild_dtensor(
    shards, mesh, placements, shape, stride, requires_grad, held=None
) -> torch.Tensor:
    """The inverse of reduce_dtensor. Does not communicate.

    `held` is the size of the world that wrote the shards and whose they are.
    Raises ValueError where a rank that lives here does not find its shard.
    """
    placements = [_read(placement) for placement in placements]
    # One copy of a replicated tensor is as good as another.
    replicated = all(placement.is_replicate() for placement in placements)
    if not replicated:
        _check_world(held)
    ours = rebuild_mesh(*mesh)
    if replicated:
        mine = [shards[0]] * len(ours.local_ranks)
    else:
        mine = _shards_of_this_process(shards, ours.local_ranks, held)
    if not mine:
        # A rank outside the mesh shows only the dtype and the dimensions.
        mine = [shards[0].new_empty((0,) * len(shape))]
    tensor = _C.from_local(mine, ours, placements, shape=shape, stride=stride)
    return tensor.requires_grad_(requires_grad)


def _check_world(held) -> None:
    if held is None:
        raise ValueError(
            "[torch.load] this file was written by a version that did not say "
            "whose shard it holds: save the tensor again"
        )
    size, ranks = held
    ensure()
    if size != _C.world_size():
        raise ValueError(
            f"[torch.load] this file holds {_shard_of(ranks)} of a world of "
            f"{size} ranks, but this world has {_C.world_size()}: load it in a "
            "world of the same size, or save full_tensor() and distribute that"
        )


def _shards_of_this_process(shards, here, held):
    size, ranks = held
    missing = [rank for rank in here if rank not in ranks]
    if missing:
        raise ValueError(
            f"[torch.load] this file holds {_shard_of(ranks)} of a world of "
            f"{size} ranks, but this process needs {_shard_of(missing)}: each "
            "rank loads the file that it saved; to read one file on all ranks, "
            "save full_tensor() and distribute that"
        )
    return [shards[ranks.index(rank)] for rank in here]


def _shard_of(ranks) -> str:
    if not ranks:
        return "no shard (it was saved by a rank outside the mesh)"
    if len(ranks) == 1:
        return f"the shard of rank {ranks[0]}"
    return f"the shards of ranks {', '.join(map(str, ranks))}"


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
