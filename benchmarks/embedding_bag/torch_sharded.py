#!/usr/bin/env python3
"""bench_embedding_bag's bags by torch.distributed._shard, under torchrun."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec

import workload


class Table:
    def __init__(self, args, layout):
        spec = ChunkShardingSpec(
            dim=0 if layout == "row-wise" else 1,
            placements=[f"rank:{r}/cpu" for r in range(dist.get_world_size())])
        self.weight = sharded_tensor.zeros(spec, args.rows, args.columns)
        self.first = workload.shard_of(args, layout)
        self.shard = self.weight.local_shards()[0].tensor
        self.restore()
        self.shard.requires_grad_()
        self.optimizer = torch.optim.SGD(
            [self.shard], lr=workload.LEARNING_RATE)

    def restore(self):
        with torch.no_grad():
            self.shard.copy_(self.first)

    def lookup(self, indices, mode, grad):
        def forward():
            return F.embedding_bag(indices, self.weight, mode=mode)

        def step():
            forward().backward(grad)
            self.optimizer.step()
            self.optimizer.zero_grad()

        return workload.Lookup(forward, step, self.restore)


def main():
    args = workload.arguments(__doc__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    grad = workload.bag_gradient(args)
    lookups = {}
    for layout in ["row-wise", "column-wise"]:
        table = Table(args, layout)
        for kind in workload.KINDS:
            indices = workload.bag_indices(args, kind, dist.get_rank())
            for mode in ["sum", "mean", "max"]:
                lookups[f"{kind}, {layout}, {mode}"] = table.lookup(
                    indices, mode, grad)
    workload.report(lookups, args.rounds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
