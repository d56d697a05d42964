#!/usr/bin/env python3
"""Times bench_embedding_bag over four processes, torch's ShardedTensor and
TorchRec on the same bags, in turns, and prints tables beside the goals.

TorchRec needs a virtual environment of its own, with torch of this version:
torchrec and fbgemm-gpu-cpu 1.8.0 for torch 2.13."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402

SHARDED, TORCHREC = "ShardedTensor", "TorchRec"
TOLERANCE = 1e-4


def launch(args, python, command):
    text = report.output_of([
        python, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", args.ranks, *command, "--rows", args.rows,
        "--columns", args.columns, "--bags", args.bags,
        "--entries", args.entries, "--rounds", args.samples])
    # Another program may print before the JSON (warnings of the launcher).
    return json.loads(text[text.index("{"):])


def has_torchrec(python):
    return subprocess.run(
        [python, "-c", "import torchrec, fbgemm_gpu"],
        capture_output=True).returncode == 0


def extend(into, samples):
    for key, value in samples.items():
        if isinstance(value, dict):
            extend(into.setdefault(key, {}), value)
        else:
            into.setdefault(key, []).extend(value)


def add_round(figures, samples):
    """Times grow; all else is the same in each round."""
    extend(figures.setdefault("times", {}), samples["times"])
    figures.setdefault("read GB/s", []).extend(samples.get("read GB/s", []))
    figures["fingerprints"] = samples["fingerprints"]
    figures["bytes"] = samples.get("bytes", {})


def summary(samples):
    def text(value):
        return f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"{text(min(samples))} / {text(statistics.median(samples))}"


def gain(theirs, mine, goal):
    if not theirs:
        return None
    ratio = min(theirs) / min(mine)
    return f"{ratio:.1f}x (>= {goal}: {'ok' if ratio >= goal else 'MISSED'})"


def goal_of(peer, name):
    if peer == TORCHREC:
        return 3 if name.endswith("step") else 1
    return 5 if "row-wise" in name and name.endswith("forward") else 1


def time_table(ours, peers):
    rows = []
    for name, variants in ours.items():
        if "one process" in name:
            continue
        row = [name, summary(variants["ours"])]
        for peer in [SHARDED, TORCHREC]:
            theirs = peers[peer].get("times", {}).get(name)
            row += [theirs and summary(theirs),
                    gain(theirs, variants["ours"], goal_of(peer, name))]
        rest = "; ".join(f"{variant.removeprefix('ours, ')} {summary(samples)}"
                         for variant, samples in variants.items() if variant != "ours")
        rows.append(row + [rest or None])
    return report.table(
        ["bags", "ours", SHARDED, f"{SHARDED} / ours", TORCHREC,
         f"{TORCHREC} / ours", "ours by name"], rows)


def one_process_table(ours, fbgemm):
    """Ours is the whole call, on one rank; bench_kernels_bag has the kernel."""
    rows = []
    for name, variants in ours.items():
        if "one process" in name:
            rows.append([
                name, *(variants.get(variant) and summary(variants[variant])
                        for variant in ["ours", "plain", "plain, sparse"]),
                fbgemm.get(name) and summary(fbgemm[name])])
    return report.table(
        ["bags of one rank", "ours", "at::embedding_bag",
         "with a sparse gradient", "FBGEMM"], rows)


def byte_table(lookups):
    rows = []
    for name, by_variant in lookups.items():
        for variant, sent in by_variant.items():
            equal = sent["counted"] == sent["formula"]
            rows.append([name, variant, f"{sent['counted']:,}",
                         f"{sent['formula']:,}", "ok" if equal else "MISSED"])
    return report.table(
        ["bags", "variant", "counted", "formula", "equal"], rows)


def strangers(ours, peers):
    """Results that are not those of our first variant, ours and the peers': times
    of programs that do different things cannot be compared."""
    found, theirs_found = [], []
    for name, variants in ours.items():
        expected = next(iter(variants.values()))
        others = [(found, variant, got) for variant, got in variants.items()]
        others += [(theirs_found, peer, figures["fingerprints"][name])
                   for peer, figures in peers.items()
                   if name in figures.get("fingerprints", {})]
        for into, who, got in others:
            for part, a, b in zip(["forward", "step"], expected, got):
                if abs(a - b) > TOLERANCE * abs(a):
                    into.append(f"{name}: {part}: {who} has another result "
                                f"than ours: {b:.1f}, not {a:.1f}")
    return found, theirs_found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    report.add_arguments(parser, rounds=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--bags", type=int, default=2048, help="of each rank")
    parser.add_argument(
        "--entries", type=int, default=20, help="of each bag")
    parser.add_argument(
        "--samples", type=int, default=5, help="measurements a round")
    parser.add_argument(
        "--torchrec", default=sys.executable, metavar="PYTHON",
        help="a Python that has TorchRec (default: this one)")
    args = parser.parse_args()

    program = report.program(args.build, "bench_embedding_bag")
    with_torchrec = has_torchrec(args.torchrec)
    ours, peers = {}, {SHARDED: {}, TORCHREC: {}}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        add_round(ours, launch(args, args.python, ["--no-python", program]))
        if not args.no_torch:
            add_round(peers[SHARDED], launch(
                args, args.python, [HERE / "torch_sharded.py"]))
        if with_torchrec:
            add_round(peers[TORCHREC], launch(
                args, args.torchrec, [HERE / "torchrec_bags.py"]))
    report.write_json(args.json, {"ours": ours, **peers})

    bandwidth = statistics.median(ours["read GB/s"])
    megabytes = args.bags * args.entries * args.columns * 4 / 1e6
    print(f"A table of {args.rows:,} x {args.columns} floats over "
          f"{args.ranks} processes, {args.bags:,} bags of {args.entries} "
          "entries a rank, milliseconds: best / median. A step is forward, "
          "backward and the update of SGD.\n\n"
          f"{time_table(ours['times'], peers)}\n")
    if not with_torchrec:
        print(f"TorchRec is left out: {args.torchrec} cannot import torchrec "
              "and fbgemm_gpu; pass --torchrec PYTHON\n")
    alone = one_process_table(
        ours["times"], peers[TORCHREC].get("times", {}))
    print(f"{alone}\n\n"
          f"One thread reads {bandwidth:.1f} GB/s of memory: the rows of "
          f"one rank's bags, {megabytes:.1f} MB, in "
          f"{megabytes / bandwidth:.2f} ms\n\n"
          "Bytes on the wire, all ranks together\n\n"
          f"{byte_table(ours['bytes'])}")
    wrong, others_wrong = strangers(ours["fingerprints"], peers)
    print("\n".join(["", *others_wrong]))
    if wrong:
        sys.exit("\n".join(["", *wrong]))


if __name__ == "__main__":
    main()
