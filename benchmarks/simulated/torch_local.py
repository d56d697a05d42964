#!/usr/bin/env python3
"""bench_simulated's ops by torch.distributed.tensor with all ranks simulated in
this process (LocalTensorMode). Prints the best time in nanoseconds as JSON."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

OPS = {
    "add": lambda x: torch.add(x, x),
    "relu": torch.relu,
    "view": lambda x: x.view(-1),
}


def best_time(op, x, samples=20, count=20):
    best = float("inf")
    for _ in range(samples):
        start = time.thread_time_ns()
        for _ in range(count):
            op(x)
        best = min(best, (time.thread_time_ns() - start) / count)
    return best


def main():
    ranks = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=ranks)
    result = {}
    with LocalTensorMode(ranks), torch.no_grad():
        mesh = init_device_mesh("cpu", (ranks,))
        x = distribute_tensor(torch.rand(4 * ranks, 4), mesh, [Shard(0)])
        for name, op in OPS.items():
            result[f"{name}/{ranks}/torch"] = best_time(op, x)
    print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
