"""The peers' side of workload.cpp: the same table, bags and gradients, and how
they are measured. Run under torchrun."""

import argparse
import json
import time

import torch
import torch.distributed as dist

SCATTER = 7919
ZIPF_EXPONENT = 1.05
VALUES = 1_048_573
SPREAD = 40_503
LEARNING_RATE = 0.1
KINDS = ["uniform", "zipf"]


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--bags", type=int, default=2048)
    parser.add_argument("--entries", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def bag_indices(args, kind, rank):
    count = args.bags * args.entries
    shape = (args.bags, args.entries)
    if kind == "uniform":
        torch.manual_seed(100 + rank)
        return torch.randint(args.rows, (count,)).view(shape)
    torch.manual_seed(200 + rank)
    share = torch.arange(
        1, args.rows + 1, dtype=torch.float64).pow(-ZIPF_EXPONENT).cumsum(0)
    ranks = torch.searchsorted(
        share, torch.rand(count, dtype=torch.float64) * share[-1])
    return ranks.clamp_max(args.rows - 1).mul(SCATTER).remainder(
        args.rows).view(shape)


def table_block(first_row, rows, first_column, columns):
    row = torch.arange(first_row, first_row + rows).mul(SPREAD).remainder(
        VALUES).int()
    column = torch.arange(
        first_column, first_column + columns, dtype=torch.int32).mul(SCATTER)
    return row.unsqueeze(1).add(column).remainder(VALUES).float().div_(VALUES)


def shard_of(args, layout):
    """This rank's block of the table."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if layout == "row-wise":
        held = args.rows // size
        return table_block(rank * held, held, 0, args.columns)
    held = args.columns // size
    return table_block(0, args.rows, rank * held, held)


def bag_gradient(args):
    return torch.arange(args.bags).remainder(7).add(1).float().div(
        8).unsqueeze(1).expand(args.bags, args.columns).contiguous()


def fingerprint(pooled):
    factors = torch.arange(
        pooled.numel(), dtype=torch.float64).remainder(17)
    return pooled.detach().double().flatten().mul_(factors).sum().item()


class Lookup:
    """`forward` gives the pooled rows; `step` looks up, goes back and updates
    the table; `restore` gives the table its first values."""

    def __init__(self, forward, step, restore, alone=False):
        self.forward = forward
        self.step = step
        self.restore = restore
        self.alone = alone  # rank 0 runs it while the others wait


def reduced(value, op):
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op)
    return tensor.item()


def measure(run, alone):
    """Milliseconds until the slowest rank is done."""
    dist.barrier()
    took = 0.0
    if not alone or dist.get_rank() == 0:
        start = time.perf_counter()
        run()
        took = (time.perf_counter() - start) * 1000
    return reduced(took, dist.ReduceOp.MAX)


def fingerprints(lookup):
    """Of the pooled rows, and of those after a step."""
    found = []
    mine = not lookup.alone or dist.get_rank() == 0
    if mine:
        lookup.restore()
    with torch.no_grad():
        first = fingerprint(lookup.forward()) if mine else 0.0
    found.append(reduced(first, dist.ReduceOp.SUM))
    if mine:
        lookup.step()
    with torch.no_grad():
        second = fingerprint(lookup.forward()) if mine else 0.0
    found.append(reduced(second, dist.ReduceOp.SUM))
    return found


def forward_only(run):
    def call():
        with torch.no_grad():
            run()
    return call


def report(lookups, rounds):
    """Measures lookups, by name, and prints JSON on rank 0."""
    prints, times = {}, {}
    for name, lookup in lookups.items():
        prints[name] = fingerprints(lookup)
        if prints[name][0] == prints[name][1]:
            raise RuntimeError(f"{name}: a step changes nothing")
    # Round by round over all, so that a busy moment hits each alike.
    for _ in range(rounds):
        for name, lookup in lookups.items():
            for part, run in [("forward", forward_only(lookup.forward)),
                              ("step", lookup.step)]:
                times.setdefault(f"{name}: {part}", []).append(
                    measure(run, lookup.alone))
    if dist.get_rank() == 0:
        print(json.dumps({"times": times, "fingerprints": prints}))
    dist.barrier()
