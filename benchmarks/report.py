"""What the runners of benchmarks/*/run.py share: programs, samples, tables."""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DEFAULT_BUILD = HERE.parent / "build" / "bench"

# One thread each: what is measured is the cost of a call.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def add_arguments(parser, rounds):
    parser.add_argument(
        "--build", type=pathlib.Path, default=DEFAULT_BUILD,
        help="build folder with the benchmarks (default: build/bench)")
    parser.add_argument(
        "--python", default=sys.executable,
        help="a Python that has torch (default: this one)")
    parser.add_argument(
        "--rounds", type=int, default=rounds,
        help=f"how often each program is run, in turns (default: {rounds})")
    parser.add_argument(
        "--json", type=pathlib.Path, help="write the figures to this file too")
    parser.add_argument(
        "--no-torch", action="store_true",
        help="leave out torch.distributed.tensor")


def program(build, name):
    path = build / "benchmarks" / name
    if not path.exists():
        sys.exit(f"{path} is not there: run `make bench` or pass --build")
    return str(path)


def output_of(command, environment=ENVIRONMENT):
    """What a program prints; its own complaints if it fails."""
    done = subprocess.run(
        [str(word) for word in command], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n"
                 f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def google_benchmark(command, repetitions):
    """Runs a Google Benchmark program, its benchmarks in turns; the samples of
    each, as dictionaries."""
    text = output_of([
        *command, "--benchmark_format=json",
        f"--benchmark_repetitions={repetitions}",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_min_time=0.02"])
    samples = {}
    for row in json.loads(text)["benchmarks"]:
        if row["run_type"] == "iteration":
            name = row["run_name"].split("/iterations:")[0]
            samples.setdefault(name, []).append(row)
    return samples


def merge(into, samples):
    for name, rows in samples.items():
        into.setdefault(name, []).extend(rows)


def best(samples, name, field="cpu_time"):
    """The least of a benchmark's samples in nanoseconds: on a shared machine
    everything else is somebody else's time. None if it was not run."""
    rows = samples.get(name)
    return min(row[field] for row in rows) if rows else None


def verdict(value, goal, digits=2):
    """The value with its goal beside it."""
    if value is None:
        return "-"
    mark = "ok" if value <= goal else "MISSED"
    return f"{value:.{digits}f} (<= {goal:g}: {mark})"


def table(headings, rows):
    """A Markdown table; None is shown as a dash."""
    def text(cell):
        if cell is None:
            return "-"
        return cell if isinstance(cell, str) else f"{cell:,.2f}".removesuffix(
            ".00")
    cells = [[text(c) for c in row] for row in [headings, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(
        c.ljust(w) if i == 0 else c.rjust(w)
        for i, (c, w) in enumerate(zip(row, widths))) + " |" for row in cells]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def write_json(path, figures):
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")
