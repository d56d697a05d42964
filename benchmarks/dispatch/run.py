#!/usr/bin/env python3
"""Times bench_dispatch and torch.distributed.tensor on the same ops, in turns,
counts instructions with callgrind, and prints tables beside the goals."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402

# Instructions over the plain op; times of the plain op; added time of torch's.
MOST_INSTRUCTIONS = {
    op: 4000 for op in ["add", "mul", "relu", "detach", "view", "t"]}
MOST_RATIO = {
    **{op: 2.0 for op in ["add", "mul", "relu", "mm", "sum"]},
    **{op: 3.0 for op in ["detach", "view", "t"]}}
LEAST_GAIN = 10.0
NO_PLAIN = ["from_local", "to_local", "redistribute"]
MOST_MISS_US = 100.0


def measure(args):
    """All samples of the C++ program, and torch's best times."""
    command = [report.program(args.build, "bench_dispatch")]
    ours, torch = {}, {}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        report.merge(ours, report.google_benchmark(command, repetitions=5))
        if not args.no_torch:
            text = report.output_of([args.python, HERE / "torch_dtensor.py"])
            for name, took in json.loads(text).items():
                torch[name] = min(torch.get(name, took), took)
    return ours, torch


def instructions(command, count):
    """Instructions a call by the names that the program marks."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "callgrind.out"
        report.output_of([
            "valgrind", "--tool=callgrind", "--instr-atstart=no",
            f"--callgrind-out-file={out}", *command, "--count", count])
        result = {}
        for dump in pathlib.Path(folder).iterdir():
            name = total = None
            for line in dump.read_text().splitlines():
                if line.startswith("desc: Trigger: Client Request: "):
                    name = line.removeprefix("desc: Trigger: Client Request: ")
                elif line.startswith("totals: "):
                    total = int(line.split()[1])
            if name is not None:
                result[name] = total / count
        return result


def minus(a, b):
    return None if a is None or b is None else a - b


def time_table(ops, ours, torch):
    rows, figures = [], {}
    for op in ops:
        plain = report.best(ours, f"{op}/plain")
        mine = report.best(ours, f"{op}/ours")
        added = minus(mine, plain)
        torch_plain = torch.get(f"{op}/plain")
        theirs = torch.get(f"{op}/torch")
        torch_added = minus(theirs, torch_plain)
        # Where plain tensors have no such op, plain is an empty call.
        ratio = mine / plain if op not in NO_PLAIN else None
        gain = torch_added / max(added, 1) if torch_added else None
        goal = MOST_RATIO.get(op)
        figures[op] = dict(
            plain_ns=plain, ours_ns=mine, torch_plain_ns=torch_plain,
            torch_ns=theirs, ratio=ratio, gain=gain)
        rows.append([
            op, plain, mine,
            report.verdict(ratio, goal) if goal else ratio, added,
            torch_plain and torch_plain / 1000, theirs and theirs / 1000,
            torch_added and torch_added / 1000,
            gain and f"{gain:.0f}x "
            f"({'ok' if gain >= LEAST_GAIN else 'MISSED'})"])
    headings = ["op", "plain ns", "ours ns", "ratio", "added ns",
                "torch plain us", "torch DTensor us", "torch added us",
                "torch added / ours"]
    return report.table(headings, rows), figures


def instruction_table(ops, counts):
    rows = []
    for op in ops:
        plain, mine = counts.get(f"{op}/plain"), counts.get(f"{op}/ours")
        added, goal = minus(mine, plain), MOST_INSTRUCTIONS.get(op)
        torch_plain = counts.get(f"torch {op}/plain")
        theirs = counts.get(f"torch {op}/torch")
        rows.append([
            op, plain and round(plain), mine and round(mine),
            report.verdict(added, goal, 0) if goal and added is not None
            else added and round(added),
            torch_plain and round(torch_plain), theirs and round(theirs),
            theirs and round(minus(theirs, torch_plain))])
    headings = ["op", "plain", "ours", "added", "torch plain (Python)",
                "torch DTensor", "torch added"]
    return report.table(headings, rows)


def miss_table(ours, torch):
    rows = []
    for name in sorted(ours):
        if not name.startswith("miss/"):
            continue
        _, op, ranks = name.removesuffix("/manual_time").split("/")
        miss = report.best(ours, name, "real_time") / 1000
        hit = report.best(ours, name, "hit_ns") / 1000
        theirs = torch.get(f"miss/{op}")
        rows.append([op, ranks, hit, report.verdict(miss, MOST_MISS_US, 1),
                     miss - hit, theirs and theirs / 1000])
    return report.table(
        ["op", "ranks here", "hit us", "miss us", "planning us",
         "torch DTensor miss us"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    report.add_arguments(parser, rounds=4)
    parser.add_argument(
        "--no-instructions", action="store_true",
        help="do not count instructions (needs valgrind)")
    parser.add_argument(
        "--torch-instructions", action="store_true",
        help="count torch.distributed.tensor's too (minutes)")
    args = parser.parse_args()

    ours, torch = measure(args)
    ops = list(dict.fromkeys(
        name.split("/")[0] for name in sorted_names(args)))
    times, figures = time_table(ops, ours, torch)
    print(f"Time a call, best of {args.rounds} rounds\n\n{times}\n")
    print("A call whose plan is not cached, on a 1-d mesh\n\n"
          f"{miss_table(ours, torch)}\n")
    counts = {}
    if not args.no_instructions:
        program = report.program(args.build, "bench_dispatch")
        counts = instructions([program], 1000)
        if args.torch_instructions:
            marks = report.program(args.build, "libcallgrind_marks.so")
            theirs = instructions(
                [args.python, HERE / "torch_dtensor.py", "--marks", marks], 100)
            counts |= {f"torch {name}": n for name, n in theirs.items()}
        print(f"Instructions a call\n\n{instruction_table(ops, counts)}")
    report.write_json(
        args.json, {"time": figures, "instructions": counts})


def sorted_names(args):
    """The names of the C++ program, in its order."""
    return subprocess.run(
        [report.program(args.build, "bench_dispatch"), "--list"], check=True,
        env=report.ENVIRONMENT, text=True,
        stdout=subprocess.PIPE).stdout.split()


if __name__ == "__main__":
    main()
