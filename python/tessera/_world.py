"""Which ranks there are: simulated, torch.distributed's, or a launcher's.

One world of processes is joined by itself when the first mesh is made, and
left when the process ends or torch's process group has gone.
"""

import atexit
import os
import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist

from tessera import _C
from tessera._C import World

__all__ = ["World", "simulate"]

World.__module__ = __name__


def simulate(ranks: int) -> World:
    """A world of `ranks` ranks that all live in this process.

    with simulate(4):
        mesh = init_device_mesh("cpu", (4,))

    In a notebook, `world = simulate(4).enter()` lasts until `world.leave()`. A
    world belongs to the process: every thread is in it.
    """
    return World.simulate(ranks)


class _Joined:
    """The world of processes that this process has joined."""

    world: World | None = None
    # torch's default group over which the ranks met, if it was torch's.
    group: weakref.ref[Any] | None = None


def ensure() -> None:
    """Joins a world of processes unless one has been entered.

    Communicates then. Raises RuntimeError where there is none to join.
    """
    if _Joined.world is not None and _is_stale():
        leave()
    if _C.in_world():
        return
    if dist.is_available() and dist.is_initialized():
        world = _join_torch()
    elif "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        world = World.from_environment()
    else:
        raise RuntimeError(
            "[init_device_mesh] there are no ranks: simulate them (with "
            "tessera.simulate(4): ...), start the program with torchrun, or "
            "call torch.distributed.init_process_group first"
        )
    world.__enter__()
    _Joined.world = world


def leave() -> None:
    """Leaves the world that ensure() joined."""
    world, _Joined.world, _Joined.group = _Joined.world, None, None
    if world is not None:
        world.__exit__(None, None, None)


atexit.register(leave)


def _default_group() -> Any:
    return dist.distributed_c10d._get_default_group()


def _is_stale() -> bool:
    """Whether the torch group that we met over is no longer the default."""
    if _Joined.group is None:
        return False
    return not dist.is_initialized() or _Joined.group() is not _default_group()


def _join_torch() -> World:
    """The world of torch.distributed's ranks, met through its store."""
    group = _default_group()
    world = World.connect(
        dist.get_rank(),
        dist.get_world_size(),
        dist.distributed_c10d._get_default_store(),
        timeout=_timeout_of(group),
    )
    _Joined.group = weakref.ref(group)
    return world


def _timeout_of(group: Any) -> float:
    """The seconds that init_process_group was given, or its default."""
    timeouts = []
    for device in group._device_types:
        try:
            timeouts.append(group._get_backend(device).options._timeout)
        except (AttributeError, RuntimeError):
            continue  # a backend without options
    if not timeouts:
        return 300.0
    return min(timeouts).total_seconds()


# ---- meshes that were entered, and others' meshes ----

_entered = threading.local()


def enter_mesh(mesh: _C.DeviceMesh) -> None:
    """What `with mesh:` does."""
    if not hasattr(_entered, "meshes"):
        _entered.meshes = []
    _entered.meshes.append(mesh)


def leave_mesh(mesh: _C.DeviceMesh) -> None:
    """The end of `with mesh:`."""
    meshes = getattr(_entered, "meshes", [])
    if mesh not in meshes:
        raise RuntimeError(
            f"[DeviceMesh] {mesh} is not entered in this thread: __exit__ was "
            "called without __enter__"
        )
    if meshes[-1] != mesh:
        raise RuntimeError(
            f"[DeviceMesh] {meshes[-1]} was entered after {mesh}: leave that "
            "first"
        )
    meshes.pop()


def mesh_of(mesh: Any, caller: str) -> _C.DeviceMesh:
    """The mesh meant by ours, torch's, a process group or None.

    None is the mesh entered last. Joins torch's world if need be.
    """
    if isinstance(mesh, _C.DeviceMesh):
        return mesh
    if mesh is None:
        meshes = getattr(_entered, "meshes", [])
        if not meshes:
            raise ValueError(
                f"[{caller}] expected a device_mesh, got None: pass one, or "
                "enter one with `with mesh:`"
            )
        return meshes[-1]
    if dist.is_available():
        if isinstance(mesh, dist.device_mesh.DeviceMesh):
            return _from_torch_mesh(mesh)
        if isinstance(mesh, dist.ProcessGroup):
            return _C.DeviceMesh(
                _device_type_of(mesh), dist.get_process_group_ranks(mesh)
            )
    raise TypeError(
        f"[{caller}] expected a DeviceMesh (tessera's or torch's) or a process "
        f"group, got {type(mesh).__name__}"
    )


# torch's meshes that were met before, with the world they were met in.
_converted: weakref.WeakKeyDictionary[Any, tuple[World | None, Any]] = (
    weakref.WeakKeyDictionary()
)


def _from_torch_mesh(mesh: Any) -> _C.DeviceMesh:
    ensure()
    world, ours = _converted.get(mesh, (None, None))
    if ours is not None and world is _Joined.world and world is not None:
        return ours
    names = mesh.mesh_dim_names
    ours = _C.DeviceMesh(
        mesh.device_type,
        mesh.mesh,
        mesh_dim_names=None if names is None else list(names),
    )
    _converted[mesh] = (_Joined.world, ours)
    return ours


def _device_type_of(group: Any) -> str:
    types = [device.type for device in group._device_types]
    return types[0] if len(types) == 1 else "cpu"


def rebuild_mesh(device_type, ranks, mesh_dim_names) -> _C.DeviceMesh:
    """Unpickles a mesh, in the world that is entered then."""
    return _C.DeviceMesh(
        device_type,
        torch.tensor(ranks),
        mesh_dim_names=None if mesh_dim_names is None else list(mesh_dim_names),
    )
