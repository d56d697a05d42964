#!/usr/bin/env python3
"""The ops of bench_dispatch in Python, plain and by torch.distributed.tensor.

One process of a fake group of four, a 1-d mesh, 4x4 shards, a warm cache, no
gradients. Prints the best time of each in nanoseconds of this thread as JSON;
with --marks counts instructions instead, under valgrind.
"""

import argparse
import ctypes
import gc
import json
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import (DTensor, Replicate, Shard,
                                      init_device_mesh)
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = 4


def make_ops(x, y, w, leaf):
    def backward():
        leaf.grad = None
        with torch.enable_grad():
            ((leaf + leaf) * leaf).sum().backward()

    return {
        "add": lambda: torch.add(x, y),
        "add_": lambda: x.add_(y),
        "add_(scalar)": lambda: x.add_(1),
        "mul": lambda: torch.mul(x, y),
        "relu": lambda: torch.relu(x),
        "detach": lambda: x.detach(),
        "mm": lambda: torch.mm(x, w),
        "t": lambda: x.t(),
        "view": lambda: x.view(-1),
        "sum": lambda: x.sum(),
        "cat": lambda: torch.cat([x, y], 1),
        "backward": backward,
    }


def make_calls(mesh):
    def local():
        return torch.rand(4, 4)

    def distributed(placement):
        return DTensor.from_local(local(), mesh, [placement])

    plain = make_ops(local(), local(), local(), local().requires_grad_())
    theirs = make_ops(
        distributed(Shard(0)), distributed(Shard(0)), distributed(Replicate()),
        distributed(Shard(0)).requires_grad_())
    shard, placements = local(), [Shard(0)]
    x = distributed(Shard(0))
    theirs["from_local"] = lambda: DTensor.from_local(shard, mesh, placements)
    theirs["to_local"] = lambda: x.to_local()
    theirs["redistribute"] = lambda: x.redistribute(mesh, placements)
    # Plain tensors have no such ops: the cost of calling anything at all.
    for name in ["from_local", "to_local", "redistribute"]:
        plain[name] = lambda: None
    calls = {f"{name}/plain": op for name, op in plain.items()}
    calls |= {f"{name}/torch": op for name, op in theirs.items()}
    return calls


def sample(op, count):
    start = time.thread_time_ns()
    for _ in range(count):
        op()
    return (time.thread_time_ns() - start) / count


def time_calls(calls, samples):
    counts = {}
    for name, op in calls.items():
        sample(op, 20)
        # About two milliseconds a sample.
        counts[name] = max(1, int(2e6 / max(sample(op, 20), 100)))
    best = {}
    for _ in range(samples):
        for name, op in calls.items():
            took = sample(op, counts[name])
            best[name] = min(best.get(name, took), took)
    return best


def time_misses(mesh, count):
    """The best mean over some calls on shapes that were never seen."""
    ops = {
        "add": lambda x: torch.add(x, x),
        "relu": torch.relu,
        "sum": lambda x: x.sum(),
        "transpose": lambda x: x.transpose(0, 1),
        "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    }
    result = {}
    rows = 0
    for name, op in ops.items():
        means = []
        for _ in range(3):
            total = 0
            for _ in range(count):
                rows += 1
                local = torch.ones(rows % 40 + 1, rows // 40 % 40 + 1,
                                   rows // 1600 + 1)
                x = DTensor.from_local(local, mesh, [Shard(0)])
                start = time.thread_time_ns()
                op(x)
                total += time.thread_time_ns() - start
            means.append(total / count)
        result[f"miss/{name}"] = min(means)
    return result


def count_instructions(calls, marks, count):
    library = ctypes.CDLL(marks)
    for name, op in calls.items():
        for _ in range(20):
            op()
        repeat = range(count)
        library.callgrind_begin()
        for _ in repeat:
            op()
        library.callgrind_end(name.encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--misses", type=int, default=50)
    parser.add_argument("--marks", help="libcallgrind_marks.so")
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    with torch.no_grad():
        calls = make_calls(mesh)
        gc.disable()
        if args.marks:
            count_instructions(calls, args.marks, args.count)
        else:
            result = time_calls(calls, args.samples)
            result |= time_misses(mesh, args.misses)
            print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
