#!/usr/bin/env python3
"""Starts one program as several processes that form a world.

    scripts/launch.py --nproc-per-node 4 build/dev/examples/quickstart

Does on one machine, with no dependency, what `torchrun --standalone
--no-python` does: sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT (a free one). When one process fails, the others are ended, and the
exit status is that of the one that failed first.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(command, ranks):
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(r), "LOCAL_RANK": str(r)},
        )
        for r in range(ranks)
    ]


def end(processes, grace_seconds=5.0):
    for p in processes:
        if p.poll() is None:
            p.terminate()
    deadline = time.monotonic() + grace_seconds
    for p in processes:
        try:
            p.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()


def wait(processes):
    """The status of the first to fail, or 0 when all have succeeded."""
    while True:
        codes = [p.poll() for p in processes]
        for rank, code in enumerate(codes):
            if code not in (None, 0):
                print(f"launch: rank {rank} ended with {code}", file=sys.stderr)
                # A negative code is the signal that ended the process.
                return code if code > 0 else 128 - code
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.nproc_per_node < 1 or not args.command:
        parser.error("give a number of processes and a program")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    processes = start(args.command, args.nproc_per_node)
    try:
        return wait(processes)
    except KeyboardInterrupt:
        return 130
    finally:
        end(processes)


if __name__ == "__main__":
    sys.exit(main())
