"""ShardedTensor: a table as one local shard a rank, looked up by each rank.

For programs that come from torch.distributed._shard: every rank passes its own
indices and gets its own rows or bags, plain tensors.

    spec = ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"])
    weight = ShardedTensor.from_full(table, spec).requires_grad_()
    bags = sharded_embedding_bag(indices, weight, offsets, mode="sum")

In a simulated world all ranks live here: arguments and results are lists with
an element for each rank, in ascending order.
"""

import torch as _torch

from tessera._C import (
    ChunkShardingSpec,
    LocalShard,
    RowSgd,
    ShardedTensor,
    ShardPlacement,
    sharded_embedding,
    sharded_embedding_bag,
)

__all__ = [
    "ChunkShardingSpec",
    "LocalShard",
    "RowSgd",
    "ShardPlacement",
    "ShardedTensor",
    "sharded_embedding",
    "sharded_embedding_bag",
]

for _class in (
    ChunkShardingSpec,
    LocalShard,
    RowSgd,
    ShardedTensor,
    ShardPlacement,
):
    _class.__module__ = __name__

# What a saved ShardedTensor is made of again: torch.load(weights_only=True).
_torch.serialization.add_safe_globals([ChunkShardingSpec, ShardedTensor])
