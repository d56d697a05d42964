#!/usr/bin/env python3
"""bench_redistribute's moves by torch.distributed.tensor, under torchrun.

Rank 0 prints milliseconds until the slowest rank is done, as JSON.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import (DTensor, Partial, Replicate, Shard,
                                      init_device_mesh)


def make_moves(mesh, n):
    rows = n // mesh.size()
    shard = torch.rand(rows, n)
    whole = torch.rand(n, n)
    same = torch.arange(n * n, dtype=torch.float32).view(n, n)

    def move(local, before, after):
        x = DTensor.from_local(local, mesh, [before], run_check=False)
        return lambda: x.redistribute(mesh, [after]).to_local()

    return {
        "S(0)->R": move(shard, Shard(0), Replicate()),
        "S(0)->S(1)": move(shard, Shard(0), Shard(1)),
        "P->R": move(whole, Partial(), Replicate()),
        "P->S(0)": move(whole, Partial(), Shard(0)),
        "R->S(0)": move(same, Replicate(), Shard(0)),
    }


def measure(run):
    dist.barrier()
    start = time.perf_counter()
    result = run()
    # Collectives of DTensor are waited for when the result is used.
    if hasattr(result, "wait"):
        result = result.wait()
    result[0, 0].item()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item() * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.no_grad():
        moves = make_moves(mesh, args.size)
        for run in moves.values():
            measure(run)
        times = {name: [] for name in moves}
        for _ in range(args.rounds):
            for name, run in moves.items():
                times[name].append(measure(run))
    if dist.get_rank() == 0:
        print(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
