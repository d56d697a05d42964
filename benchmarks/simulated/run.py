#!/usr/bin/env python3
"""Times bench_simulated and torch's LocalTensorMode on the same ops, in turns,
and prints a table beside the goal."""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402

RANKS = [1, 4, 16, 64]
OPS = ["add", "relu", "view"]
MOST_EXCESS_NS = 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    report.add_arguments(parser, rounds=3)
    args = parser.parse_args()

    command = [report.program(args.build, "bench_simulated")]
    ours, torch = {}, {}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        report.merge(ours, report.google_benchmark(command, repetitions=5))
        for ranks in [] if args.no_torch else RANKS:
            text = report.output_of(
                [args.python, HERE / "torch_local.py", ranks])
            for name, took in json.loads(text).items():
                torch[name] = min(torch.get(name, took), took)

    rows, figures = [], {}
    for op in OPS:
        for ranks in RANKS:
            plain = report.best(ours, f"{op}/{ranks}/plain")
            mine = report.best(ours, f"{op}/{ranks}/ours")
            theirs = torch.get(f"{op}/{ranks}/torch")
            excess = (mine - plain) / ranks
            figures[f"{op}/{ranks}"] = dict(
                plain_ns=plain, ours_ns=mine, torch_ns=theirs)
            rows.append([
                op, str(ranks), plain / 1000, mine / 1000,
                report.verdict(excess, MOST_EXCESS_NS, 0),
                theirs and theirs / 1000])
    print(f"All ranks in one process, best of {args.rounds} rounds\n")
    print(report.table(
        ["op", "ranks", "as many plain calls, us", "ours us",
         "excess a rank, ns", "torch LocalTensorMode us"], rows))
    report.write_json(args.json, figures)


if __name__ == "__main__":
    main()
