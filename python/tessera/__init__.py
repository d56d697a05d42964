"""Distributed tensors: torch tensors laid out over a mesh of ranks.

A distributed tensor is a native torch tensor, dispatched in C++. Modules,
optimizers and autograd work on it; the communication is inserted. The names are
those of torch.distributed.tensor.

    import torch, tessera as ts

    with ts.simulate(4):                      # or under torchrun
        mesh = ts.init_device_mesh("cpu", (4,))
        x = ts.distribute_tensor(torch.randn(8, 4), mesh, [ts.Shard(0)])
        y = (x @ x.t()).sum()
        print(y.placements, y.full_tensor())
"""

import torch as _torch  # noqa: F401  (loads the libraries that _C stands on)

from tessera import (  # noqa: F401
    _checkpoint,
    _composites,
    _grad_scaler,
    _load_state_dict,
    _parametrizations,
    _refusals,
    checkpoint,
    debug,
    experimental,
    placement_types,
    sharded,
)
from tessera._C import register_rule
from tessera._distribute import distribute_, distribute_module, distribute_tensor
from tessera._factories import (
    empty,
    full,
    manual_seed,
    ones,
    rand,
    randn,
    zeros,
)
from tessera._scopes import explicit_communication, strict
from tessera._tensor import DTensor
from tessera._world import World, simulate
from tessera.device_mesh import DeviceMesh, init_device_mesh
from tessera.embedding import EmbeddingScope, MaskBuffer
from tessera.experimental import implicit_replication
from tessera.placement_types import (
    MaskPartial,
    Partial,
    Placement,
    Replicate,
    Shard,
)

__all__ = [
    "DTensor",
    "DeviceMesh",
    "EmbeddingScope",
    "MaskBuffer",
    "MaskPartial",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "World",
    "checkpoint",
    "debug",
    "distribute_",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "experimental",
    "explicit_communication",
    "full",
    "implicit_replication",
    "init_device_mesh",
    "manual_seed",
    "ones",
    "placement_types",
    "rand",
    "randn",
    "register_rule",
    "sharded",
    "simulate",
    "strict",
    "zeros",
]

__version__ = "0.1.0"
