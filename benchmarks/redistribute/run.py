#!/usr/bin/env python3
"""Times bench_redistribute over four processes and torch.distributed.tensor on
the same moves, in turns, and prints a table beside the goals."""

import argparse
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402

MOST_OF_RAW = 1.15
MOST_OF_TORCH = {"S(0)->S(1)": 0.33}


def launch(args, command):
    # Another program may print before the JSON (warnings of the launcher).
    text = report.output_of([
        args.python, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", args.ranks, *command,
        "--size", args.size, "--rounds", args.samples])
    return json.loads(text[text.index("{"):])


def extend(into, times):
    for key, value in times.items():
        if isinstance(value, dict):
            extend(into.setdefault(key, {}), value)
        else:
            into.setdefault(key, []).extend(value)


def summary(samples):
    def text(value):
        return f"{value:.1f}" if value < 10 else f"{value:.0f}"
    return f"{text(min(samples))} / {text(statistics.median(samples))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    report.add_arguments(parser, rounds=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument(
        "--samples", type=int, default=7, help="measurements a round")
    args = parser.parse_args()

    program = report.program(args.build, "bench_redistribute")
    ours, torch = {}, {}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        extend(ours, launch(args, ["--no-python", program]))
        if not args.no_torch:
            extend(torch, launch(args, [HERE / "torch_dtensor.py"]))

    rows = []
    for move, times in ours.items():
        mine = min(times["ours"])
        # A method that moves the bytes only, without making the result, is shown
        # but not raced against.
        complete = {name: samples for name, samples in times["raw"].items()
                    if name != "all_to_all of packed bytes"}
        fastest = min(complete, key=lambda name: min(complete[name]))
        theirs = min(torch[move]) if torch else None
        rows.append([
            move, summary(times["ours"]),
            "; ".join(f"{name} {summary(samples)}"
                      for name, samples in times["raw"].items()),
            report.verdict(mine / min(complete[fastest]), MOST_OF_RAW),
            summary(torch[move]) if torch else None,
            theirs and report.verdict(
                mine / theirs, MOST_OF_TORCH.get(move, 1.0))])
    print(f"{args.size} x {args.size} floats over {args.ranks} processes, "
          "milliseconds: best / median\n")
    print(report.table(
        ["move", "ours", "raw", "ours / best raw", "torch DTensor",
         "ours / torch"], rows))
    report.write_json(args.json, {"ours": ours, "torch": torch})


if __name__ == "__main__":
    main()
