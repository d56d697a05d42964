#!/usr/bin/env python3
"""bench_embedding's lookups by torch.distributed.tensor, under torchrun.

Rank 0 prints JSON: milliseconds until the slowest rank is done, bytes of memory
at the peak, nanoseconds of a tiny lookup.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import (DTensor, Replicate, Shard,
                                      distribute_tensor, init_device_mesh)

SCATTER = 7919
ZIPF_EXPONENT = 1.05


def uniform_indices(rows, count):
    torch.manual_seed(1)
    return torch.randint(rows, (count,))


def zipf_indices(rows, count):
    torch.manual_seed(2)
    share = torch.arange(
        1, rows + 1, dtype=torch.float64).pow(-ZIPF_EXPONENT).cumsum(0)
    ranks = torch.searchsorted(
        share, torch.rand(count, dtype=torch.float64) * share[-1])
    return ranks.clamp_max(rows - 1).mul(SCATTER).remainder(rows)


def released(rows):
    """The shard of a lookup that is not reduced. Its mask must be given up, or
    the next lookup of that shape fails."""
    rows.placements[0].mask_buffer.release_mask()
    return rows._local_tensor


class Lookups:
    def __init__(self, mesh, args):
        self.mesh = mesh
        held = args.rows // mesh.size()
        self.weight = DTensor.from_local(
            torch.rand(held, args.columns), mesh, [Shard(0)],
            run_check=False).detach().requires_grad_()
        self.grad = torch.rand(args.indices, args.columns)
        self.part = args.indices // mesh.size()

    def mine(self, whole):
        return whole.chunk(self.mesh.size())[dist.get_rank()].contiguous()

    def gradient(self):
        result = self.weight.grad
        self.weight.grad = None
        return result.to_local() if isinstance(result, DTensor) else result

    def calls(self, name, indices):
        """By the names of bench_embedding; with gradients or without."""
        weight, mesh = self.weight, self.mesh
        ids = DTensor.from_local(indices, mesh, [Replicate()], run_check=False)
        batch = DTensor.from_local(
            self.mine(indices), mesh, [Shard(0)], run_check=False)
        part_grad = DTensor.from_local(
            self.mine(self.grad), mesh, [Shard(0)], run_check=False)

        def both():
            F.embedding(ids, weight).full_tensor().backward(self.grad)
            return self.gradient()

        def batch_both():
            F.embedding(batch, weight).backward(part_grad)
            return self.gradient()

        forward = {
            f"{name}, replicated: forward":
                lambda: released(F.embedding(ids, weight)),
            f"{name}, replicated: to full":
                lambda: F.embedding(ids, weight).full_tensor(),
            f"{name}, replicated: to S(0)":
                lambda: F.embedding(ids, weight).redistribute(
                    mesh, [Shard(0)]).to_local(),
            f"{name}, batch-sharded: forward":
                lambda: F.embedding(batch, weight).to_local(),
        }
        backward = {
            f"{name}, replicated: to full, forward+backward, dense": both,
            f"{name}, batch-sharded: forward+backward, dense": batch_both,
        }
        return forward, backward


def without_gradients(run):
    def call():
        with torch.no_grad():
            return run()
    return call


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


def status_bytes(field):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def peak_memory_of(run):
    dist.barrier()
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = status_bytes("VmRSS")
    run()
    return status_bytes("VmHWM") - before


def tiny_times(mesh):
    weight, indices = torch.rand(16, 8), torch.arange(20).remainder(16).view(
        5, 4)
    ids = distribute_tensor(indices, mesh, [Replicate()])
    rows = distribute_tensor(weight, mesh, [Shard(0)])
    columns = distribute_tensor(weight, mesh, [Shard(1)])
    calls = {
        "plain": lambda: F.embedding(indices, weight),
        "row-wise": lambda: released(F.embedding(ids, rows)),
        "column-wise": lambda: F.embedding(ids, columns),
    }
    best = {}
    with torch.no_grad():
        for _ in range(10):
            for name, call in calls.items():
                start = time.thread_time_ns()
                for _ in range(100):
                    call()
                took = (time.thread_time_ns() - start) / 100
                best[name] = [min(best.get(name, [took])[0], took)]
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--indices", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    lookups = Lookups(mesh, args)
    calls, with_backward = {}, []
    for name, draw in [("uniform", uniform_indices), ("zipf", zipf_indices)]:
        forward, backward = lookups.calls(
            name, draw(args.rows, args.indices))
        calls |= {n: without_gradients(run) for n, run in forward.items()}
        calls |= backward
        with_backward += backward
    for run in calls.values():
        measure(run)
    times = {name: {"torch": []} for name in calls}
    for _ in range(args.rounds):
        for name, run in calls.items():
            times[name]["torch"].append(measure(run))
    memory = {name: {"torch": [peak_memory_of(calls[name])]}
              for name in with_backward}
    dist.barrier()
    tiny = tiny_times(mesh)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"times": times, "memory": memory, "tiny": tiny}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
