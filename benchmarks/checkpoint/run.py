#!/usr/bin/env python3
"""Saving and loading beside torch's DCP and the safetensors package.

    benchmarks/checkpoint/run.py [--mib 976] [--rounds 5] [--directory DIR]
    benchmarks/checkpoint/run.py --relayout     # S(0) into S(0) and S(1), in turns

One state of embedding tables and small tensors, sharded by rows over four
processes, on one file system. `dd` writes as many bytes with conv=fsync. Files
are read from the page cache: what is compared is the software. The package
tessera must be importable (PYTHONPATH=build/release/python).
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
COLUMNS = 256


def shapes(mib):
    rows = mib * (1 << 20) // (8 * COLUMNS * 4)
    tables = {f"table{i}.weight": (rows, COLUMNS) for i in range(8)}
    small = {f"layer{i}.bias": (COLUMNS,) for i in range(64)}
    return {**tables, **small}


# ---- one rank ----


def timed(barrier, call):
    barrier()
    begin = time.perf_counter()
    call()
    barrier()
    return time.perf_counter() - begin


def in_turns(args, barrier, states, load, results):
    """Loads into each layout after the other, in the same processes."""
    for _ in range(args.rounds):
        for name, tensors in states.items():
            seconds = timed(barrier, lambda tensors=tensors: load(tensors))
            results.setdefault(name, []).append(seconds)


def fill(local, seed):
    import torch

    local.copy_(torch.arange(local.numel()).view_as(local) % 1009 + seed)


def run_tessera(args, results):
    import torch
    import torch.distributed as dist

    import tessera as ts
    from tessera import checkpoint

    size = dist.get_world_size()
    mesh = ts.init_device_mesh("cpu", (size,))

    def state(placement):
        return {
            name: ts.zeros(
                shape,
                device_mesh=mesh,
                placements=[placement if len(shape) > 1 else ts.Replicate()],
            )
            for name, shape in shapes(args.mib).items()
        }

    root = os.path.join(args.directory, "tessera")
    if args.mode == "save":
        tensors = state(ts.Shard(0))
        for i, tensor in enumerate(tensors.values()):
            fill(tensor.to_local(), i)
        results["save"] = timed(
            dist.barrier, lambda: checkpoint.save(root, tensors, step=1)
        )
        return

    def load(tensors):
        checkpoint.load(root + "/step_1", tensors)

    if args.mode == "relayout":
        states = {"S(0)": state(ts.Shard(0)), "S(1)": state(ts.Shard(1))}
        in_turns(args, dist.barrier, states, load, results)
        return
    tensors = state(ts.Shard(1) if args.mode == "columns" else ts.Shard(0))
    results["load"] = timed(dist.barrier, lambda: load(tensors))


def run_dcp(args, results):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, zeros

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def state(placement):
        return {
            name: zeros(
                shape,
                device_mesh=mesh,
                placements=[placement if len(shape) > 1 else Replicate()],
            )
            for name, shape in shapes(args.mib).items()
        }

    root = os.path.join(args.directory, "dcp")
    if args.mode == "save":
        tensors = state(Shard(0))
        for i, tensor in enumerate(tensors.values()):
            fill(tensor.to_local(), i)
        results["save"] = timed(
            dist.barrier, lambda: dcp.save(tensors, checkpoint_id=root)
        )
        return

    def load(tensors):
        dcp.load(tensors, checkpoint_id=root)

    if args.mode == "relayout":
        states = {"S(0)": state(Shard(0)), "S(1)": state(Shard(1))}
        in_turns(args, dist.barrier, states, load, results)
        return
    tensors = state(Shard(1) if args.mode == "columns" else Shard(0))
    results["load"] = timed(dist.barrier, lambda: load(tensors))


def run_safetensors(args, results):
    """Each rank a file of its own; the same layout only, and no sync."""
    import torch
    import torch.distributed as dist
    from safetensors import safe_open
    from safetensors.torch import save_file

    size = dist.get_world_size()
    file = os.path.join(args.directory, f"rank{dist.get_rank()}.safetensors")
    tensors = {
        name: torch.zeros(shape[0] // size, *shape[1:])
        for name, shape in shapes(args.mib).items()
    }
    if args.mode == "save":
        for i, tensor in enumerate(tensors.values()):
            fill(tensor, i)
        results["save"] = timed(
            dist.barrier, lambda: save_file(tensors, file)
        )
        return

    def load():
        with safe_open(file, "pt") as opened:
            for name, tensor in tensors.items():
                tensor.copy_(opened.get_tensor(name))

    results["load"] = timed(dist.barrier, load)


RUNS = {
    "tessera": run_tessera,
    "dcp": run_dcp,
    "safetensors": run_safetensors,
}


def work(args):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    RUNS[args.work](args, results)
    if dist.get_rank() == 0:
        pathlib.Path(args.directory, "result.json").write_text(
            json.dumps(results)
        )
    dist.barrier()
    dist.destroy_process_group()


# ---- all of it ----


def launch(args, library, mode, ranks):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks), str(HERE), "--work", library,
        "--mode", mode, "--mib", str(args.mib), "--directory", args.directory,
        "--rounds", str(args.rounds),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{library} {mode}:\n{done.stderr[-3000:]}")
    result = pathlib.Path(args.directory, "result.json")
    results = json.loads(result.read_text())
    if mode == "relayout":
        return results
    (seconds,) = results.values()
    return seconds


def dd(args):
    file = os.path.join(args.directory, "dd")
    begin = time.perf_counter()
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={file}", "bs=1M", f"count={args.mib}",
         "conv=fsync"],
        check=True, capture_output=True,
    )
    seconds = time.perf_counter() - begin
    os.remove(file)
    return seconds


def clean(args, *names):
    for name in names:
        shutil.rmtree(os.path.join(args.directory, name), ignore_errors=True)


def measure(args):
    figures = {}

    def note(name, library, seconds):
        figures.setdefault(name, {}).setdefault(library, []).append(seconds)

    libraries = ["tessera", "dcp"]
    try:
        import safetensors  # noqa: F401

        libraries.append("safetensors")
    except ImportError:
        print("safetensors is not installed: left out", file=sys.stderr)
    for _ in range(args.rounds):
        note("write", "dd", dd(args))
        for library in libraries:
            clean(args, "tessera", "dcp")
            note("save, 4 ranks", library, launch(args, library, "save", 4))
            note("load, 4 ranks", library, launch(args, library, "rows", 4))
            if library == "safetensors":
                continue
            note("load, 4 to 2", library, launch(args, library, "rows", 2))
            note("load, S(0) to S(1)", library,
                 launch(args, library, "columns", 4))
            clean(args, "tessera", "dcp")
            launch(args, library, "save", 2)
            note("load, 2 to 4", library, launch(args, library, "rows", 4))
    return figures


def relayout(args):
    """S(0) into S(0) and into S(1) by turns, in the same processes."""
    print(f"{args.mib} MiB, 4 ranks, seconds: median (least)")
    for library in ("tessera", "dcp"):
        launch(args, library, "save", 4)
        times = launch(args, library, "relayout", 4)
        same, other = (statistics.median(times[n]) for n in ("S(0)", "S(1)"))
        print(f"{library:10} S(0) to S(0) {same:.3f} ({min(times['S(0)']):.3f})"
              f"  to S(1) {other:.3f} ({min(times['S(1)']):.3f})"
              f"  ratio {other / same:.2f}", flush=True)


def print_table(figures, mib):
    print(f"{mib} MiB, seconds: median (least)")
    libraries = ["tessera", "dcp", "safetensors", "dd"]
    print(f"{'':22}" + "".join(f"{name:>18}" for name in libraries))
    for name, by_library in figures.items():
        cells = []
        for library in libraries:
            times = by_library.get(library)
            cells.append(
                f"{statistics.median(times):.3f} ({min(times):.3f})"
                if times else "-"
            )
        print(f"{name:22}" + "".join(f"{cell:>18}" for cell in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=976)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--relayout", action="store_true")
    parser.add_argument("--work", choices=sorted(RUNS), help=argparse.SUPPRESS)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
        return
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        args.directory = directory
        if args.relayout:
            relayout(args)
        else:
            print_table(measure(args), args.mib)


if __name__ == "__main__":
    main()
