#!/usr/bin/env python3
"""The cost of a call from Python: plain torch, tessera, torch.distributed.tensor.

All three in one process, in turns, on the same ops: 4x4 shards, one shard here, a
warm cache, no gradients, one thread. tessera's mesh has one simulated rank;
torch's is a fake group of four. Prints the best time of this thread for each and
what is added to the plain op, beside the goals.
"""

import argparse
import gc
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.tensor as torch_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import tessera

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402

RANKS = 4
# How many times smaller than torch's the added time should be.
LEAST_GAIN = 10.0
GOALS = {"embedding, row-wise": 20.0}
# Where plain tensors have no such op, plain is the cost of calling anything.
NO_PLAIN = ["from_local", "to_local", "redistribute, nothing to do"]


def make_ops(x, y, w, leaf, tables, ids):
    def backward():
        leaf.grad = None
        with torch.enable_grad():
            ((leaf + leaf) * leaf).sum().backward()

    return {
        "add": lambda: torch.add(x, y),
        "add_": lambda: x.add_(y),
        "add_(scalar)": lambda: x.add_(1),
        "x + 1": lambda: x + 1,
        "mul": lambda: torch.mul(x, y),
        "relu": lambda: torch.relu(x),
        "detach": lambda: x.detach(),
        "mm": lambda: torch.mm(x, w),
        "t": lambda: x.t(),
        "view": lambda: x.view(-1),
        "sum": lambda: x.sum(),
        "cat of 2": lambda: torch.cat([x, y], 1),
        "embedding, column-wise": lambda: torch.nn.functional.embedding(
            ids, tables[1]
        ),
        "embedding, row-wise": lambda: torch.nn.functional.embedding(
            ids, tables[0]
        ),
        "backward": backward,
    }


def make_distributed(library, mesh):
    """The ops on tensors of one library, and those that plain ones lack."""

    def distributed(placement, local=None):
        local = torch.rand(4, 4) if local is None else local
        return library.DTensor.from_local(local, mesh, [placement])

    shard, replicate = library.Shard, library.Replicate
    ids = distributed(replicate(), torch.arange(4))
    ops = make_ops(
        distributed(shard(0)),
        distributed(shard(0)),
        distributed(replicate()),
        distributed(shard(0)).requires_grad_(),
        [distributed(shard(0)), distributed(shard(1))],
        ids,
    )
    local, placements = torch.rand(4, 4), [shard(0)]
    x = distributed(shard(0))
    ops["from_local"] = lambda: library.DTensor.from_local(
        local, mesh, placements
    )
    ops["to_local"] = lambda: x.to_local()
    leaf = distributed(shard(0)).requires_grad_()
    ops[GRAD_MODE] = in_grad_mode(lambda: x.to_local())
    ops[RECORDED] = in_grad_mode(lambda: leaf.to_local())
    ops["redistribute, nothing to do"] = lambda: x.redistribute(
        mesh, placements
    )
    return ops


# Of a tensor that does not require grad, as most programs call it; and of one
# that does, beside the identity that a plain tensor records.
GRAD_MODE = "to_local, grad mode"
RECORDED = "to_local, recorded"


def in_grad_mode(op):
    def call():
        with torch.enable_grad():
            return op()

    return call


ROW_WISE = "embedding, row-wise"


def is_row_wise(ops):
    """Whether a row-wise sharded table is looked up as it lies.

    Then the result is a pending sum. A library may also move the table first,
    which costs nothing on a mesh of one rank and is no row-wise lookup.
    """
    return ops[ROW_WISE]().placements[0].is_partial()


def make_calls(our_mesh, torch_mesh):
    def local():
        return torch.rand(4, 4)

    plain = make_ops(
        local(),
        local(),
        local(),
        local().requires_grad_(),
        [local(), local()],
        torch.arange(4),
    )
    plain |= {name: lambda: None for name in NO_PLAIN}
    plain[GRAD_MODE] = in_grad_mode(lambda: None)
    leaf = local().requires_grad_()
    plain[RECORDED] = in_grad_mode(lambda: leaf.view_as(leaf))
    sides = {
        "plain": plain,
        "ours": make_distributed(tessera, our_mesh),
        "torch": make_distributed(torch_tensor, torch_mesh),
    }
    names = list(sides["ours"])
    if not all(is_row_wise(sides[side]) for side in ("ours", "torch")):
        print(f"{ROW_WISE}: left out, a table was moved", file=sys.stderr)
        names.remove(ROW_WISE)
    return {
        (name, side): ops[name]
        for name in names
        for side, ops in sides.items()
    }


class Holder:
    """As torch's DTensor: an object of Python's that holds its shard."""

    def __init__(self, local):
        self.local = local

    def to_local(self):
        return self.local


def make_method_calls(mesh):
    """What a call of any method takes: the least that to_local could."""
    local, number = torch.rand(4, 4), 1
    holder = Holder(local)
    x = tessera.DTensor.from_local(local, mesh, [tessera.Shard(0)])
    return {
        "nothing": lambda: None,
        "int.conjugate, in C": lambda: number.conjugate(),
        "a Python method that reads an attribute": lambda: holder.to_local(),
        "dim of a plain tensor": lambda: local.dim(),
        "our to_local": lambda: x.to_local(),
    }


def method_table(best):
    return report.table(
        ["call", "added ns"],
        [
            [name, f"{took - best['nothing']:.0f}"]
            for name, took in best.items()
            if name != "nothing"
        ],
    )


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


def time_table(best):
    rows, figures = [], {}
    for name in dict.fromkeys(name for name, _ in best):
        plain, ours, theirs = (
            best[name, side] / 1000 for side in ("plain", "ours", "torch")
        )
        goal = GOALS.get(name, LEAST_GAIN)
        if ours < plain:
            gain, verdict = None, "faster than plain"
        else:
            gain = (theirs - plain) / max(ours - plain, 1e-3)
            met = "ok" if gain >= goal else "MISSED"
            verdict = f"{gain:.1f}x ({met}, {goal:.0f}x)"
        figures[name] = dict(
            plain_us=plain, ours_us=ours, torch_us=theirs, gain=gain
        )
        rows.append([
            name,
            f"{plain:.2f}",
            f"{ours:.2f}",
            f"{theirs:.2f}",
            f"{ours - plain:.2f}",
            f"{theirs - plain:.2f}",
            verdict,
        ])
    headings = [
        "op",
        "plain us",
        "ours us",
        "torch DTensor us",
        "ours added us",
        "torch added us",
        "torch added / ours",
    ]
    return report.table(headings, rows), figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=RANKS
    )
    torch_mesh = dist.init_device_mesh("cpu", (RANKS,))
    with tessera.simulate(1), torch.no_grad():
        our_mesh = tessera.init_device_mesh("cpu", (1,))
        calls = make_calls(our_mesh, torch_mesh)
        gc.disable()
        best = time_calls(calls, args.samples)
        methods = time_calls(make_method_calls(our_mesh), args.samples)
    dist.destroy_process_group()
    table, figures = time_table(best)
    print(f"Time a call from Python, best of {args.samples} samples\n\n{table}")
    print(f"\nWhat calling a method adds\n\n{method_table(methods)}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
