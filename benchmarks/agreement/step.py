"""What it costs that ranks agree on how an op went (decision 0010), beside a
training step of a replicated model on a sharded batch.

    torchrun --standalone --nproc-per-node 4 benchmarks/agreement/step.py
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import tessera as ts


def microseconds(call, rounds):
    """The best and the median of `rounds` calls; ranks start together."""
    for _ in range(5):
        call()
    taken = []
    for _ in range(rounds):
        dist.barrier()
        begin = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begin) * 1e6)
    taken.sort()
    return taken[0], taken[rounds // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=512)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    mesh = ts.init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(
        torch.nn.Linear(256, args.hidden), torch.nn.ReLU(),
        torch.nn.Linear(args.hidden, args.hidden), torch.nn.ReLU(),
        torch.nn.Linear(args.hidden, 100))
    ts.distribute_module(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = ts.distribute_tensor(
        torch.randn(args.batch, 256), mesh, [ts.Shard(0)])
    labels = ts.distribute_tensor(
        torch.randint(0, 100, (args.batch,)), mesh, [ts.Shard(0)])
    table = ts.distribute_tensor(
        torch.randn(100, 1), mesh, [ts.Replicate()])

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    results = {
        "training step": microseconds(step, 200),
        "index_select, agreed": microseconds(
            lambda: table.index_select(0, labels), 500),
        "add, nothing to agree on": microseconds(
            lambda: labels + labels, 500),
    }
    if dist.get_rank() == 0:
        for name, (best, median) in results.items():
            print(f"{name}: best {best:.1f} us, median {median:.1f} us")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
