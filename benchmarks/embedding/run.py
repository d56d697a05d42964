#!/usr/bin/env python3
"""Times bench_embedding over four processes and torch.distributed.tensor on the
same lookups, in turns, and prints tables beside the goals."""

import argparse
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402

MOST_OF_OWNED = 1.2
MOST_TINY_ADDED_NS = 6000
# How much faster than torch's, by the end of the lookup's name.
LEAST_GAIN = {
    "replicated: forward": 1, "to full": 1, "to S(0)": 1,
    "forward+backward, dense": 4, "forward+backward, sparse": 10,
}
LEAST_BATCH_GAIN = 10


def launch(args, command):
    # Another program may print before the JSON (warnings of the launcher).
    text = report.output_of([
        args.python, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", args.ranks, *command, "--rows", args.rows,
        "--columns", args.columns, "--indices", args.indices,
        "--rounds", args.samples])
    return json.loads(text[text.index("{"):])


def extend(into, samples):
    for key, value in samples.items():
        if isinstance(value, dict):
            extend(into.setdefault(key, {}), value)
        elif isinstance(value, list):
            into.setdefault(key, []).extend(value)
        else:
            into[key] = value


def summary(samples):
    def text(value):
        return f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"{text(min(samples))} / {text(statistics.median(samples))}"


def least(samples):
    return min(samples) if samples else None


def gain(theirs, mine, goal=None):
    if theirs is None:
        return None
    ratio = theirs / mine
    if goal is None:
        return f"{ratio:.1f}x"
    return f"{ratio:.1f}x (>= {goal}: {'ok' if ratio >= goal else 'MISSED'})"


def torch_times(name, torch):
    """Torch's own lookup of that name; its gradients are dense, and come of
    only the reduced rows."""
    name = name.replace(", sparse", ", dense")
    return torch.get(name, {}).get("torch")


def torch_goal(name):
    if "batch-sharded" in name:
        return LEAST_BATCH_GAIN
    return next((goal for end, goal in LEAST_GAIN.items()
                 if name.endswith(end)), None)


def time_table(ours, torch):
    rows = []
    for name, variants in ours.items():
        mine = min(variants["ours"])
        hand = least(variants.get("hand-written"))
        owned = least(variants.get("owned rows + zero fill"))
        theirs = torch_times(name, torch)
        rest = "; ".join(
            f"{variant} {summary(samples)}" for variant, samples in variants.items()
            if variant not in ("ours", "hand-written"))
        rows.append([
            name, summary(variants["ours"]),
            summary(variants["hand-written"]), gain(hand, mine, 1),
            theirs and summary(theirs),
            gain(least(theirs), mine, torch_goal(name)), rest or None,
            owned and report.verdict(mine / owned, MOST_OF_OWNED)])
    return report.table(
        ["lookup", "ours", "hand-written", "hand / ours", "torch DTensor",
         "torch / ours", "others", "ours / owned rows"], rows)


def memory_table(ours, torch):
    def megabytes(samples):
        return f"{statistics.median(samples) / 2**20:.0f}" if samples else None
    return report.table(
        ["lookup", "ours", "hand-written", "torch DTensor"],
        [[name, megabytes(variants["ours"]), megabytes(variants["hand-written"]),
          megabytes(torch_times(name, torch))]
         for name, variants in ours.items()])


def byte_table(variants):
    rows = []
    for name, by_variant in variants.items():
        for variant, sent in by_variant.items():
            equal = sent["counted"] == sent["formula"]
            rows.append([name, variant, f"{sent['counted']:,}",
                         f"{sent['formula']:,}",
                         "ok" if equal else "MISSED"])
    return report.table(
        ["lookup", "variant", "counted", "formula", "equal"], rows)


def tiny_table(ours, torch):
    plain, torch_plain = least(ours["plain"]), least(torch.get("plain"))
    rows = [["plain", plain, None, torch_plain, None]]
    for name in ["row-wise", "column-wise"]:
        mine, theirs = least(ours[name]), least(torch.get(name))
        rows.append([
            name, mine, report.verdict(mine - plain, MOST_TINY_ADDED_NS, 0),
            theirs, theirs and theirs - torch_plain])
    return report.table(
        ["5x4 indices, 16x8 table", "ours ns", "added ns", "torch ns (Python)",
         "torch added ns"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    report.add_arguments(parser, rounds=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--indices", type=int, default=16_384)
    parser.add_argument(
        "--samples", type=int, default=5, help="measurements a round")
    args = parser.parse_args()

    program = report.program(args.build, "bench_embedding")
    ours, torch = {}, {}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        extend(ours, launch(args, ["--no-python", program]))
        if not args.no_torch:
            extend(torch, launch(args, [HERE / "torch_dtensor.py"]))
    report.write_json(args.json, {"ours": ours, "torch": torch})

    print(f"A row-wise table of {args.rows:,} x {args.columns} floats over "
          f"{args.ranks} processes, {args.indices:,} indices, milliseconds: "
          f"best / median\n\n{time_table(ours['times'], torch.get('times', {}))}"
          "\n\nPeak memory beyond the table, MiB a rank\n\n"
          f"{memory_table(ours['memory'], torch.get('memory', {}))}"
          "\n\nBytes on the wire, all ranks together\n\n"
          f"{byte_table(ours['bytes'])}"
          "\n\nA tiny lookup, best of all rounds\n\n"
          f"{tiny_table(ours['tiny'], torch.get('tiny', {}))}")


if __name__ == "__main__":
    main()
