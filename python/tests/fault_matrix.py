"""Every fault at every moment of a step on every rank: survivors raise in time.

    python/tests/fault_matrix.py [--faults kill,stop] [--phases save] [--ranks 0]

Faults: a rank is killed, stopped, raises, calls another collective (of the same
group, or of another one), looks up an index that is none, or has a label that is
none. Moments: forward, backward, the
optimizer's step, save and load. Every other rank must raise, in time, and name
the rank and the collective. The processes are forks of this one.
test_fault_matrix.py runs a part of it.
"""

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time

import torch
import torch._dynamo  # noqa: F401  optimizers need it: once, not in every fork

import tessera as ts
from tessera import Partial, Replicate, Shard, checkpoint

RANKS = 4
TIMEOUT = 2.0
FAULTS = ["kill", "stop", "raise", "collective", "group", "index", "label"]
PHASES = ["forward", "backward", "optimizer", "save", "load"]
# Until every survivor has raised, in seconds.
LIMITS = {"kill": 1.0, "stop": TIMEOUT + 1.0, "raise": 1.0}
MISMATCH = 0.1


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Program:
    """A table by rows, a linear layer, a loss over labels."""

    def __init__(self, root):
        self.root = root
        self.mesh = ts.init_device_mesh("cpu", (RANKS,))
        self.grid = ts.init_device_mesh("cpu", (2, RANKS // 2))
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(16, 8)
        self.linear = torch.nn.Linear(8, 5)
        ts.distribute_(self.table.weight, self.mesh, [Shard(0)])
        ts.distribute_module(self.linear, self.mesh)
        parameters = [*self.table.parameters(), *self.linear.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        self.model = torch.nn.ModuleList([self.table, self.linear])
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def local(self, values):
        return ts.DTensor.from_local(
            torch.tensor(values), self.mesh, [Shard(0)]
        )

    def loss(self, index=3, label=2):
        rows = self.table(self.local([index, 1]))
        return torch.nn.functional.cross_entropy(
            self.linear(rows), self.local([label, 0])
        )

    def forward(self):
        self.value = self.loss()
        self.value.full_tensor()

    def backward(self):
        self.value.backward()

    def optimizer_step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self):
        checkpoint.save(self.root, self.state, step=1)

    def load(self):
        checkpoint.load(os.path.join(self.root, "step_1"), self.state)

    def sum_of_row(self):
        """A collective of another group."""
        placements = [Replicate(), Partial()]
        pending = ts.DTensor.from_local(torch.ones(3), self.grid, placements)
        pending.full_tensor()

    def phases(self):
        return {
            "forward": self.forward,
            "backward": self.backward,
            "optimizer": self.optimizer_step,
            "save": self.save,
            "load": self.load,
        }


def strike(program, fault):
    """What the victim does instead."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "raise":
        raise ZeroDivisionError("the program's own")
    if fault == "collective":
        pending = ts.DTensor.from_local(torch.ones(3), program.mesh, [Partial()])
        pending.full_tensor()
    if fault == "group":
        program.sum_of_row()
    if fault == "index":
        program.loss(index=99).full_tensor()
    if fault == "label":
        program.loss(label=99).full_tensor()


def rank_main(rank, port, root, fault, phase, victim, report):
    torch.set_num_threads(1)
    # A machine with other work starts processes slowly.
    with ts.World.connect(rank, RANKS, "127.0.0.1", port, timeout=15) as world:
        program = Program(root)
        program.sum_of_row()
        for call in program.phases().values():
            call()
        ready = program.mesh  # every group has met; all begin together
        ts.DTensor.from_local(torch.ones(1), ready, [Partial()]).full_tensor()
        world.timeout = TIMEOUT
        begin = time.monotonic()
        try:
            # What a fault does not reach at once it reaches in the next steps.
            for step in range(3):
                for name, call in program.phases().items():
                    if rank == victim and name == phase and step == 0:
                        begin = time.monotonic()
                        os.write(report, f"{victim} struck {begin} -\n".encode())
                        strike(program, fault)
                    call()
        except (RuntimeError, ValueError, IndexError) as error:
            now = time.monotonic()
            text = str(error).splitlines()[0]
            os.write(report, f"{rank} raised {now} {text[:2000]}\n".encode())
            # Its connections stay: the others must not live off its end.
            time.sleep(0.3)


def start(rank, arguments):
    pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    with contextlib.suppress(BaseException):
        rank_main(rank, *arguments)
        code = 0
    os._exit(code)


def names_culprit(text, victim):
    """Whether an error names a collective, and the rank that went wrong."""
    # A bad value, which one rank told the others of.
    if re.search(rf"\b99\b.*\(rank {victim}\)", text):
        return True
    return bool(re.search(r"\[\w+\] rank \d", text)) and bool(
        re.search(rf"\brank {victim}\b", text)
    )


def case(fault, phase, victim, slack):
    """Runs one case; returns what is wrong, or nothing, and the seconds."""
    root = tempfile.mkdtemp()
    reading, writing = os.pipe()
    try:
        port = free_port()
        pids = [
            start(rank, (port, root, fault, phase, victim, writing))
            for rank in range(RANKS)
        ]
        os.close(writing)
        deadline = time.monotonic() + 20
        left = set(pids) - ({pids[victim]} if fault == "stop" else set())
        while left and time.monotonic() < deadline:
            left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.005)
        hung = [pids.index(pid) for pid in left]
        for pid in left | ({pids[victim]} if fault == "stop" else set()):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with os.fdopen(reading) as file:
            lines = [line.rstrip().split(" ", 3) for line in file]
        struck = [float(line[2]) for line in lines if line[1] == "struck"]
        raised = {
            int(line[0]): (float(line[2]) - struck[0], line[3])
            for line in lines
            if line[1] == "raised" and struck
        }
        survivors = [rank for rank in range(RANKS) if rank != victim]
        if hung:
            return f"ranks {hung} hang", 0.0
        silent = [rank for rank in survivors if rank not in raised]
        if silent:
            return f"ranks {silent} did not raise", 0.0
        longest = max(raised[rank][0] for rank in survivors)
        for rank in survivors:
            if not names_culprit(raised[rank][1], victim):
                return f"rank {rank} names no culprit: {raised[rank][1]}", longest
        limit = LIMITS.get(fault, MISMATCH) * slack
        if longest > limit:
            return f"{longest:.3f} s, more than {limit}: {raised}", longest
        return "", longest
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run(cases, slack):
    """The failures, and the longest time of each fault in each phase."""
    failures = []
    longest = {}
    for fault, phase, victim in cases:
        wrong, seconds = case(fault, phase, victim, slack)
        key = fault, phase
        longest[key] = max(longest.get(key, 0.0), seconds)
        if wrong:
            failures.append(f"{fault} in {phase} on rank {victim}: {wrong}")
            print(failures[-1], flush=True)
    return failures, longest


def print_table(longest):
    faults = list(dict.fromkeys(fault for fault, _ in longest))
    phases = list(dict.fromkeys(phase for _, phase in longest))
    print(f"{'longest, in s':14}" + "".join(f"{p:>12}" for p in phases))
    for fault in faults:
        cells = "".join(f"{longest[fault, p]:12.3f}" for p in phases)
        print(f"{fault:14}{cells}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--ranks", default="0,1,2,3")
    parser.add_argument(
        "--slack", type=float, default=1.0, help="limits times this"
    )
    args = parser.parse_args()
    faults, phases = args.faults.split(","), args.phases.split(",")
    ranks = [int(rank) for rank in args.ranks.split(",")]
    cases = list(itertools.product(faults, phases, ranks))
    failures, longest = run(cases, args.slack)
    print_table(longest)
    print(f"{len(cases)} cases, {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
