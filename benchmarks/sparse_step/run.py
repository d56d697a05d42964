#!/usr/bin/env python3
"""One step of training a large table: sparse gradients beside dense ones.

    PYTHONPATH=build/dev/python .venv/bin/python benchmarks/sparse_step/run.py

Forward pass, backward pass and optimizer, four simulated ranks, batches sharded
over them; milliseconds, the best of some steps.
"""

import argparse
import time

import torch

import tessera as ts
from tessera import Shard


def best_step(sparse, make_optimizer, rows, batch, steps):
    torch.manual_seed(1)
    with ts.simulate(4):
        mesh = ts.init_device_mesh("cpu", (4,))
        model = torch.nn.Sequential(
            torch.nn.Embedding(rows, 64, sparse=sparse), torch.nn.Linear(64, 1)
        )
        ts.distribute_(model[0].weight, mesh, [Shard(0)])
        ts.distribute_module(model, mesh)
        optimizer = make_optimizer(model.parameters(), lr=0.1)
        best = float("inf")
        for _ in range(steps):
            ids = torch.randint(rows, (batch,))
            ids = ts.distribute_tensor(ids, mesh, [Shard(0)])
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(ids).square().mean().backward()
            optimizer.step()
            best = min(best, time.perf_counter() - begin)
        value = model[0].weight.detach().double().square().sum().full_tensor()
    return 1000 * best, value.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=10)
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    for make_optimizer in (torch.optim.Adagrad, torch.optim.SGD):
        dense, value = best_step(False, make_optimizer, **options)
        sparse, again = best_step(True, make_optimizer, **options)
        assert abs(value - again) < 1e-6 * value, (value, again)
        name = make_optimizer.__name__
        print(f"{name:8} dense {dense:7.1f}  sparse {sparse:5.1f}")


if __name__ == "__main__":
    main()
