#!/usr/bin/env python3
"""bench_embedding_bag's bags by TorchRec with FBGEMM, under torchrun, and by
FBGEMM alone on rank 0. Needs torchrec and fbgemm-gpu-cpu."""

import torch
import torch.distributed as dist
import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    EmbeddingLocation, PoolingMode)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen)
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise, construct_module_sharding_plan, row_wise)
from torchrec.distributed.types import ShardingEnv

import workload

# It has no maxima.
POOLING = {"sum": torchrec.PoolingType.SUM, "mean": torchrec.PoolingType.MEAN}


class Sharded:
    def __init__(self, args, layout, mode):
        size = dist.get_world_size()
        tables = torchrec.EmbeddingBagCollection(
            tables=[torchrec.EmbeddingBagConfig(
                name="table", embedding_dim=args.columns,
                num_embeddings=args.rows, feature_names=["f"],
                pooling=POOLING[mode])],
            device=torch.device("meta"))
        sharder = EmbeddingBagCollectionSharder(fused_params={
            "optimizer": EmbOptimType.EXACT_SGD,
            "learning_rate": workload.LEARNING_RATE})
        # By itself it takes the one without an optimizer on CPUs.
        fused = EmbeddingComputeKernel.FUSED.value
        how = (row_wise(compute_kernel=fused) if layout == "row-wise"
               else column_wise(
                   ranks=list(range(size)), compute_kernel=fused))
        plan = construct_module_sharding_plan(
            tables, {"table": how}, sharder=sharder, local_size=size,
            world_size=size, device_type="cpu")
        self.module = sharder.shard(
            tables, plan, ShardingEnv.from_process_group(dist.group.WORLD),
            torch.device("cpu"))
        shards = [shard for value in self.module.state_dict().values()
                  for shard in value.local_shards()]
        if len(shards) != 1:
            raise RuntimeError(f"{len(shards)} shards on a rank, not 1")
        self.shard = shards[0].tensor
        self.first = workload.shard_of(args, layout)

    def restore(self):
        with torch.no_grad():
            self.shard.copy_(self.first)

    def lookup(self, args, indices, grad):
        features = torchrec.KeyedJaggedTensor.from_lengths_sync(
            keys=["f"], values=indices.flatten(),
            lengths=torch.full((args.bags,), args.entries, dtype=torch.int32))

        def forward():
            return self.module(features).wait().values()

        return workload.Lookup(
            forward, lambda: forward().backward(grad), self.restore)


def alone(args, indices, mode, grad):
    """FBGEMM's own, on rank 0."""
    if dist.get_rank() != 0:
        return workload.Lookup(None, None, None, alone=True)
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [(args.rows, args.columns, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=workload.LEARNING_RATE,
        pooling_mode=(PoolingMode.SUM if mode == "sum" else PoolingMode.MEAN))
    table = bags.split_embedding_weights()[0]
    first = workload.table_block(0, args.rows, 0, args.columns)
    offsets = torch.arange(0, indices.numel() + 1, args.entries)

    def restore():
        with torch.no_grad():
            table.copy_(first)

    def forward():
        return bags(indices.flatten(), offsets)

    return workload.Lookup(
        forward, lambda: forward().backward(grad), restore, alone=True)


def main():
    args = workload.arguments(__doc__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # Gradients of all ranks are added up, as everywhere else here.
    set_gradient_division(False)
    grad = workload.bag_gradient(args)
    bags = {kind: workload.bag_indices(args, kind, dist.get_rank())
            for kind in workload.KINDS}
    lookups = {}
    for layout in ["row-wise", "column-wise"]:
        for mode in POOLING:
            table = Sharded(args, layout, mode)
            for kind, indices in bags.items():
                lookups[f"{kind}, {layout}, {mode}"] = table.lookup(
                    args, indices, grad)
    for mode in POOLING:
        for kind, indices in bags.items():
            lookups[f"{kind}, one process, {mode}"] = alone(
                args, indices, mode, grad)
    workload.report(lookups, args.rounds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
