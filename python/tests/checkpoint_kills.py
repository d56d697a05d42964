"""Kills a random rank at a random moment of a save, again and again.

    python/tests/checkpoint_kills.py --trials 200

Every time the checkpoint before or the new one must load, whole, and the other
ranks must raise and end. The processes are forks of this one, which is in no
world: starting them takes milliseconds.
"""

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback

import torch

import tessera as ts
from tessera import Replicate, Shard, checkpoint

RANKS = 4
LIMIT = 20.0  # seconds in which every survivor must end


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def state_of(mesh, value, rows):
    def full(shape, placement):
        return ts.full(
            shape, value, device_mesh=mesh, placements=[placement]
        )

    return {
        "table": full((rows, 64), Shard(0)),
        "columns": full((100, 64), Shard(1)),
        "bias": full((64,), Replicate()),
        "plain": torch.full((5,), value),
    }


def rank_main(rank, port, root, acknowledge, asynchronous, rows, how):
    """Saves step after step; says when each is done."""
    torch.set_num_threads(1)
    with ts.World.connect(rank, RANKS, "127.0.0.1", port, timeout=5.0):
        mesh = ts.init_device_mesh("cpu", (RANKS,))
        for step in range(1, 200):
            try:
                made = checkpoint.save(
                    root,
                    state_of(mesh, float(step), rows),
                    step=step if how == "steps" else 7,
                    keep=2,
                    asynchronous=asynchronous,
                )
                if asynchronous:
                    made.wait()
            except RuntimeError as error:
                # As it should. Nobody is left to say goodbye to.
                os._exit(3 if "rank" in str(error) else 5)
            os.write(acknowledge, bytes([step]))


def start(rank, arguments):
    pid = os.fork()
    if pid != 0:
        return pid
    with contextlib.suppress(BaseException):
        try:
            rank_main(rank, *arguments)
        except BaseException:
            traceback.print_exc()
    os._exit(4)


def wait_for_all(pids, deadline):
    """The exit status of each; those that hang are killed and say so."""
    left = dict(enumerate(pids))
    status = {}
    while left and time.monotonic() < deadline:
        for rank, pid in list(left.items()):
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                status[rank] = code
                del left[rank]
        time.sleep(0.005)
    for rank, pid in left.items():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        status[rank] = "hung"
    return status


def loaded(root, rows):
    """The value of the newest whole checkpoint; fails on a mixture."""
    state = {
        "table": torch.zeros(rows, 64),
        "columns": torch.zeros(100, 64),
        "bias": torch.zeros(64),
        "plain": torch.zeros(5),
    }
    found = checkpoint.load_latest(root, state)
    if found is None:
        return 0
    value = state["plain"][0].item()
    for name, tensor in state.items():
        assert (tensor == value).all(), f"{name} is a mixture"
    assert not found.skipped, found.skipped
    return int(value)


def trial(seed):
    """One kill. Returns how the newest checkpoint compares: old or new."""
    draw = random.Random(seed)
    root = tempfile.mkdtemp()
    try:
        reading, writing = os.pipe()
        how = draw.choice(["steps", "replace"])
        rows = draw.choice([10, 4000, 20_000])
        arguments = (
            free_port(), root, writing, draw.random() < 0.4, rows, how,
        )
        pids = [start(rank, arguments) for rank in range(RANKS)]
        os.close(writing)
        done = collections.Counter()
        # Some saves first, then a moment of the next ones.
        for _ in range(RANKS * draw.randint(1, 3)):
            done.update(os.read(reading, 1))
        time.sleep(draw.random() ** 2 * 0.15)
        victim = draw.randrange(RANKS)
        os.kill(pids[victim], signal.SIGKILL)
        killed_at = time.monotonic()
        status = wait_for_all(pids, killed_at + LIMIT)
        seconds = time.monotonic() - killed_at
        while data := os.read(reading, 4096):
            done.update(data)
        os.close(reading)
        hung = [rank for rank, code in status.items() if code == "hung"]
        assert not hung, f"ranks {hung} hang after rank {victim} was killed"
        for rank, code in status.items():
            if rank != victim:
                assert os.waitstatus_to_exitcode(code) == 3, (rank, code)
        value = loaded(root, rows)
        started = max(done, default=0) + 1
        whole = max((s for s, n in done.items() if n == RANKS), default=0)
        assert whole <= value <= started, (whole, value, started)
        return ("new" if value > whole else "old"), seconds
    finally:
        shutil.rmtree(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    outcomes = collections.Counter()
    longest = 0.0
    for seed in range(args.seed, args.seed + args.trials):
        try:
            outcome, seconds = trial(seed)
        except AssertionError as error:
            sys.exit(f"trial {seed}: {error}")
        outcomes[outcome] += 1
        longest = max(longest, seconds)
    print(
        f"{args.trials} kills: {dict(outcomes)}; the survivors had ended after "
        f"{longest:.2f} s at most"
    )


if __name__ == "__main__":
    main()
