"""Every process keeps its last collectives, and writes them when asked."""

import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from processes import RANKS, run

import tessera as ts
from tessera import DTensor, Partial, Replicate, Shard

VARIABLE = "TESSERA_FLIGHT_RECORD"


def analyzed(directory):
    """What torch's analyzer says of the records in a directory, and finds."""
    found = pathlib.Path(directory, "found.pickle")
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace",
            directory, "-o", found,
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    _, database = pickle.loads(found.read_bytes())
    return said, database.collectives


def wait_for(file):
    deadline = time.monotonic() + 20
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return file


def body_signal(rank):
    """SIGUSR1 writes what torch's analyzer reads, whatever the collectives."""
    directory = os.environ[VARIABLE]
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    pending = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    for _ in range(5):
        pending.full_tensor()
    # Uneven shards: what each rank sends is not alike.
    rows = ts.distribute_tensor(torch.arange(20.0).view(10, 2), mesh, [Shard(0)])
    rows.full_tensor()
    rows.redistribute(placements=[Shard(1)])
    pending.redistribute(placements=[Shard(0)])
    table = ts.distribute_tensor(torch.ones(10, 4), mesh, [Shard(0)])
    ids = DTensor.from_local(torch.tensor([rank, 3]), mesh, [Shard(0)])
    torch.nn.functional.embedding(ids, table).full_tensor()
    os.kill(os.getpid(), signal.SIGUSR1)
    file = wait_for(pathlib.Path(directory, f"tessera_trace_{rank}.json"))
    record = json.loads(file.read_text())
    entries = record["entries"]
    assert {entry["state"] for entry in entries} == {"completed"}
    reduced = [e for e in entries if e["collective"] == "all_reduce"]
    assert len(reduced) >= 5, entries
    assert all(e["bytes"] == 12 for e in reduced[:5]), reduced
    assert all(e["frames"][0]["name"] for e in entries), entries
    for entry in entries:
        assert (
            entry["time_created_ns"] <= entry["time_discovered_completed_ns"]
        )
        assert abs(entry["time_created_ns"] / 1e9 - time.time()) < 100
    pickled = pathlib.Path(directory, f"trace_rank_{rank}")
    assert pickle.loads(pickled.read_bytes()) == record
    dist.barrier()
    if rank == 0:
        # Nothing is wrong, and it says so: no rank is missing in a collective
        # or has another one.
        said, collectives = analyzed(directory)
        assert len(collectives) == len(entries), said
        assert all(collective.pass_check for collective in collectives), said
        assert "rror" not in said, said


def body_error(rank):
    """An error carries the last ones and writes them; the analyzer sees who."""
    directory = os.environ[VARIABLE]
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    pending = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    rows = ts.distribute_tensor(torch.ones(8), mesh, [Shard(0)])
    for _ in range(9):
        pending.full_tensor()
    # The error of a rank that is ahead would end this call of the others, too.
    pathlib.Path(directory, f"ready{rank}x").touch()
    for other in range(RANKS):
        wait_for(pathlib.Path(directory, f"ready{other}x"))
    try:
        if rank == 2:
            rows.full_tensor()
        pending.full_tensor()
        raise AssertionError("expected an error")
    except RuntimeError as error:
        text = str(error)
    assert "The last collectives of this rank:\n" in text, text
    lines = text.split("The last collectives of this rank:\n")[1].split("\n")
    assert len([line for line in lines if line.startswith("  ")]) == 8, text
    assert all("[0, 1, 2, 3], " in line for line in lines[:8]), text
    assert "under way" in lines[7] and "done" in lines[6], text
    file = pathlib.Path(directory, f"tessera_trace_{rank}.json")
    assert f"More of them are in {file}" in text, text
    assert file.exists()
    pathlib.Path(directory, f"done{rank}x").touch()
    for other in range(RANKS):
        wait_for(pathlib.Path(directory, f"done{other}x"))
    if rank == 0:
        said, _ = analyzed(directory)
        assert "COLLECTIVE_TYPE_MISMATCH" in said, said
        assert "Culprit rank 2" in said, said
    # The connections are of no more use.
    pathlib.Path(directory, f"end{rank}x").touch()
    wait_for(pathlib.Path(directory, "end0x"))
    os._exit(0)


def test_signal(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "records"))
    run(body_signal)


def test_error(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    run(body_error)


def break_collective(rank):
    """What rank 2's other collective makes this rank raise."""
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    pending = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    rows = DTensor.from_local(torch.ones(2), mesh, [Shard(0)])
    try:
        (rows if rank == 2 else pending).full_tensor()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("expected an error")


def leave_together(rank):
    """Ends a process whose connections are of no more use."""
    directory = os.environ["TMPDIR"]
    pathlib.Path(directory, f"done{rank}x").touch()
    for other in range(RANKS):
        wait_for(pathlib.Path(directory, f"done{other}x"))
    os._exit(0)


def own_directory():
    return pathlib.Path(os.environ["TMPDIR"], f"tessera_flight_{os.getuid()}")


def body_error_by_default(rank):
    """A collective that fails writes the record though nobody asked."""
    # An error of the program, which every rank raises, writes nothing.
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    table = DTensor.from_local(torch.ones(3, 4), mesh, [Shard(0)])
    ids = DTensor.from_local(
        torch.tensor([99 if rank == 1 else 3]), mesh, [Shard(0)]
    )
    try:
        torch.nn.functional.embedding(ids, table)
        raise AssertionError("expected an error")
    except IndexError as error:
        assert "(rank 1)" in str(error), error
    assert not own_directory().exists()
    dist.barrier()
    text = break_collective(rank)
    file = own_directory() / f"tessera_trace_{rank}.json"
    assert f"\nMore of them are in {file}" in text, text
    entries = json.loads(file.read_text())["entries"]
    assert entries[-1]["state"] == "started", entries[-1]
    assert own_directory().stat().st_mode & 0o777 == 0o700
    leave_together(rank)


def body_no_files(rank):
    """0 turns the files off; somebody's link is not followed."""
    if rank < 2:
        os.environ[VARIABLE] = "0"
    text = break_collective(rank)
    assert "The last collectives of this rank:\n" in text, text
    if rank < 2:
        assert "More of them" not in text, text
    else:
        assert "\nMore of them could not be written to " in text, text
    assert not list(own_directory().resolve().iterdir())
    leave_together(rank)


def test_error_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run(body_error_by_default)


def test_no_files(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / f"tessera_flight_{os.getuid()}"
    link.symlink_to(tmp_path / "elsewhere")
    run(body_no_files)


def body_own_handler(rank):
    """A program that handles SIGUSR1 keeps its handler."""
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(rank))
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    DTensor.from_local(torch.ones(3), mesh, [Partial()]).full_tensor()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == [rank]


def test_own_handler():
    run(body_own_handler)
