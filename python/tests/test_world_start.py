"""The start of a world over processes: stores that are silent, ranks that stop,
other jobs and strangers at the same port."""

import contextlib
import math
import os
import pathlib
import random
import signal
import socket
import threading
import time

import pytest
import torch
from processes import Processes, _free_port

import tessera as ts
from tessera import DTensor, Partial

# What starting a process and a busy machine may take.
SLACK = 8.0


def total_of(world, value):
    mesh = ts.init_device_mesh("cpu", (world.size,))
    x = DTensor.from_local(torch.full((2,), value), mesh, [Partial()])
    return x.full_tensor()[0].item()


def connect(rank, size, port, timeout, value=1.0):
    with ts.World.connect(rank, size, "127.0.0.1", port, timeout=timeout) as world:
        return total_of(world, value)


@contextlib.contextmanager
def listening():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield server.getsockname()[1]


def test_something_silent_listens():
    with listening() as port, Processes() as processes:
        processes.start([(connect, (1, 2, port, 2.0), {})])
        said = processes.gather(1, 2 + SLACK)
    assert said, "it still waits"
    text, seconds = said[0]
    assert "[World.connect] rank 1 of 2 could not meet" in text.replace("::", ".")
    assert "does not answer" in text
    assert seconds < 4


def serve(port):
    store = torch.distributed.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False
    )
    store.set("ready", "1")
    time.sleep(60)


def connect_in_store(port, directory):
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    store.get("ready")
    pathlib.Path(directory, "ready").touch()
    while not pathlib.Path(directory, "stopped").exists():
        time.sleep(0.01)
    begin = time.monotonic()
    try:
        ts.World.connect(1, 2, store, timeout=2.0).enter()
    except RuntimeError as error:
        return f"{error} after {time.monotonic() - begin}"
    return "no error"


def test_a_given_store_whose_server_has_stopped(tmp_path):
    port = _free_port()
    with Processes() as processes:
        server, _ = processes.start(
            [(serve, (port,), {}), (connect_in_store, (port, tmp_path), {})]
        )
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(server.pid, signal.SIGSTOP)
        (tmp_path / "stopped").touch()
        said = processes.gather(1, 2 + SLACK)
    assert said, "it still waits"
    text = said[1][0]
    assert "could not meet the others in the store" in text
    assert "does not answer" in text
    assert float(text.split()[-1]) < 4


def worlds_without_end(rank, size, port, timeout):
    """Makes worlds until a step fails: its text, and the seconds of each step."""
    for _ in range(10_000):
        text = ""
        times = [time.monotonic()]
        world = ts.World.connect(rank, size, "127.0.0.1", port, timeout=timeout)
        steps = [world.enter, lambda: total_of(world, 1.0), world.barrier]
        for step in steps:
            try:
                step()
            except RuntimeError as error:
                text = str(error)
            times.append(time.monotonic())
            if text:
                break
        if text and step == world.enter:
            return text, times
        world.leave()
        times.append(time.monotonic())
        if text:
            return text, times
    return "no error", times


@pytest.mark.parametrize("shared_memory", ["64", "0"])
def test_rank_0_stops_at_any_moment(shared_memory):
    size, timeout = 3, 2.0
    chance = random.Random(shared_memory)
    for trial in range(3):
        port = _free_port()
        with Processes() as processes:
            first, *_ = processes.start(
                [
                    (
                        worlds_without_end,
                        (rank, size, port, timeout),
                        {"TESSERA_SHARED_MEMORY": shared_memory},
                    )
                    for rank in range(size)
                ]
            )
            # From before the first world to amid the tenth or so.
            time.sleep(chance.uniform(0.05, 1.0) * (1 + trial))
            os.kill(first.pid, signal.SIGSTOP)
            said = processes.gather(size - 1, 2 * timeout + SLACK)
        assert set(said) == {1, 2}, f"trial {trial}: only {set(said)} raised"
        for rank, ((text, times), _) in said.items():
            assert "[" in text and f"rank {rank}" in text, text
            steps = [end - begin for begin, end in zip(times, times[1:])]
            assert max(steps) < timeout + 2, (trial, rank, steps, text)


# ---- two jobs at one port ----


def slurm(job, rank, **more):
    plain = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "3",
        "SLURM_NODELIST": "127.0.0.1",
    }
    return {**plain, **more}


def job_total(value, timeout, directory):
    """The sum of the job's values; ranks stay until all of both jobs are done."""
    try:
        with ts.World.from_environment(timeout=timeout) as world:
            total = total_of(world, value)
            world.barrier()
            pathlib.Path(directory, f"{os.getpid()}").touch()
            deadline = time.monotonic() + timeout
            while len(os.listdir(directory)) < 6 and time.monotonic() < deadline:
                time.sleep(0.01)
            return total
    except RuntimeError:
        pathlib.Path(directory, f"{os.getpid()}").touch()
        raise


# These two have the same first port.
JOBS = {1000: 1.0, 5501: 100.0}


def test_two_jobs_whose_ports_are_the_same(tmp_path):
    order = [(job, rank) for rank in range(3) for job in JOBS]
    random.Random(0).shuffle(order)
    with Processes() as processes:
        processes.start(
            [
                (job_total, (JOBS[job], 60.0, tmp_path), slurm(job, rank))
                for job, rank in order
            ]
        )
        said = processes.gather(6, 60 + SLACK)
    for index, (job, rank) in enumerate(order):
        assert said[index][0] == 3 * JOBS[job], (job, rank, said)


def test_two_jobs_at_one_given_port(tmp_path):
    port = str(_free_port())
    order = [(job, rank) for job in JOBS for rank in range(3)]
    with Processes() as processes:
        processes.start(
            [
                (
                    job_total,
                    (JOBS[job], 60.0 if job == 1000 else 6.0, tmp_path),
                    slurm(job, rank, MASTER_PORT=port, MASTER_ADDR="127.0.0.1"),
                )
                # The first job is there before the other comes.
                for job, rank in order[:3]
            ]
        )
        deadline = time.monotonic() + 60
        while len(os.listdir(tmp_path)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first = processes.results
        processes.start(
            [
                (
                    job_total,
                    (JOBS[job], 3.0, tmp_path),
                    slurm(job, rank, MASTER_PORT=port, MASTER_ADDR="127.0.0.1"),
                )
                for job, rank in order[3:]
            ]
        )
        second = processes.gather(3, 3 + SLACK)
        processes.results = first
        assert {i: s[0] for i, s in processes.gather(3, 60 + SLACK).items()} == {
            0: 3.0,
            1: 3.0,
            2: 3.0,
        }
    assert set(second) == {0, 1, 2}
    for rank, (text, _) in second.items():
        assert f"rank {rank} of 3 could not meet" in text, text
    for rank in (1, 2):
        assert (
            "the store there is that of another job ('1000.0', not '5501.0')"
            in second[rank][0]
        ), second[rank][0]


def test_the_job_may_be_given(tmp_path):
    port = _free_port()
    with ts.World.connect(0, 1, "127.0.0.1", port, job="mine"):
        with Processes() as processes:
            processes.start([(connect_job, (port, "theirs"), {})])
            said = processes.gather(1, 2 + SLACK)
    assert "another job ('mine', not 'theirs')" in said[0][0], said


def connect_job(port, job):
    ts.World.connect(1, 2, "127.0.0.1", port, timeout=1.0, job=job).enter()


# ---- strangers ----


def scan(over):
    """Connects to every port that is listened to here, as a port scanner does."""
    held = []
    while not over.is_set():
        ports = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":  # listens
                    ports.add(int(fields[1].split(":")[1], 16))
        for port in ports:
            for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(200)):
                stranger = socket.socket()
                stranger.settimeout(0.2)
                with contextlib.suppress(OSError):
                    stranger.connect(("127.0.0.1", port))
                    stranger.sendall(garbage)
                held.append(stranger)
        # The last hundred stay.
        while len(held) > 100:
            held.pop(0).close()
    for stranger in held:
        stranger.close()


def worlds(rank, port, count):
    """Worlds over sockets, one after the other."""
    totals = []
    for _ in range(count):
        with ts.World.connect(rank, 3, "127.0.0.1", port, timeout=30.0) as world:
            totals.append(total_of(world, 1.0 + rank))
    return totals


def test_strangers_at_every_port():
    port = _free_port()
    over = threading.Event()
    scanner = threading.Thread(target=scan, args=(over,))
    scanner.start()
    try:
        with Processes() as processes:
            processes.start(
                [
                    (worlds, (rank, port, 4), {"TESSERA_SHARED_MEMORY": "0"})
                    for rank in range(3)
                ]
            )
            said = processes.gather(3, 60)
    finally:
        over.set()
        scanner.join()
    assert {rank: s[0] for rank, s in said.items()} == {
        rank: [6.0] * 4 for rank in range(3)
    }


# ---- timeouts that are no usual numbers ----


@pytest.mark.parametrize("timeout", [1e-5, 1e10, 1e300, math.inf])
def test_long_and_short_timeouts(timeout):
    if timeout > 1:
        with ts.World.connect(0, 1, "127.0.0.1", _free_port(), timeout=timeout):
            pass
    with ts.simulate(2) as world:
        world.timeout = timeout
        expected = {1e-5: 0.001, 1e300: math.inf}.get(timeout, timeout)
        assert world.timeout == expected


@pytest.mark.parametrize("timeout", [0.0, -1.0, -math.inf, math.nan])
def test_timeouts_that_are_none(timeout):
    with pytest.raises(ValueError, match="must be a positive number of seconds"):
        ts.World.connect(0, 1, "127.0.0.1", 1, timeout=timeout)
    with ts.simulate(2) as world:
        with pytest.raises(ValueError, match="must be a positive number"):
            world.timeout = timeout
        assert world.timeout == 300


def collectives_with(rank, port, timeout):
    return connect(rank, 3, port, timeout, 1.0 + rank)


@pytest.mark.parametrize("shared_memory", ["64", "0"])
def test_ranks_that_wait_for_ever(shared_memory):
    port = _free_port()
    with Processes() as processes:
        processes.start(
            [
                (
                    collectives_with,
                    (rank, port, 1e10 if rank < 2 else math.inf),
                    {"TESSERA_SHARED_MEMORY": shared_memory},
                )
                for rank in range(3)
            ]
        )
        said = processes.gather(3, 60)
    assert {rank: s[0] for rank, s in said.items()} == {r: 6.0 for r in range(3)}
