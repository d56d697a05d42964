"""A run that is saved by one process while others read it, fork, or end."""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from processes import _free_port

import tessera as ts
from tessera import checkpoint

SAVER = """
import sys, torch
from tessera import checkpoint
root, saves = sys.argv[1], int(sys.argv[2])
for step in range(1, saves + 1):
    state = {"x": torch.full((300_000,), float(step))}
    # Another step, or the one that is being read once more.
    checkpoint.save(root, state, step=step // 2, keep=1)
"""

READER = """
import sys, torch
from tessera import checkpoint
root, last = sys.argv[1], int(sys.argv[2])
newest = loads = 0
while newest < last:
    state = {"x": torch.zeros(300_000)}
    found = checkpoint.load_latest(root, state)
    if found is None:
        assert newest == 0, "there was one, and now there is none"
        continue
    value = state["x"][0].item()
    assert (state["x"] == value).all(), "a mixture of two"
    assert not found.skipped, found.skipped
    assert value >= newest, (value, newest)
    newest, loads = value, loads + 1
print(loads)
"""


def start(program, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def ended(*processes, timeout=120):
    """What they print, when they have ended without an error."""
    texts = []
    try:
        for process in processes:
            out, error = process.communicate(timeout=timeout)
            assert process.returncode == 0, error
            texts.append((out, error))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return texts


def test_readers_beside_a_saver(tmp_path):
    """Neither sees the other: no error, no mixture, and nothing older again."""
    saves = 150
    readers = [start(READER, tmp_path / "run", saves) for _ in range(2)]
    texts = ended(start(SAVER, tmp_path / "run", saves), *readers)
    assert all(int(out) > 0 for out, _ in texts[1:])


def ranks(program, count, *arguments):
    if count == 0:
        return [start(program, *arguments)]
    shared = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    return [start(program, *arguments, RANK=str(r), **shared) for r in range(count)]


FORGOTTEN = """
import sys, torch
from tessera import checkpoint
root, told = sys.argv[1], sys.argv[2]
pending = checkpoint.save(root, {"x": torch.ones(3)}, asynchronous=True)
if told == "told":
    try:
        pending.wait()
    except ValueError:
        pass
"""


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("told", ["told", "forgotten"])
def test_the_error_of_the_last_save_is_printed(tmp_path, count, told):
    """Once, where nobody has been told of it."""
    (tmp_path / "file").write_text("x")
    for _, error in ended(*ranks(FORGOTTEN, count, tmp_path / "file", told)):
        lines = [line for line in error.splitlines() if "[save_async]" in line]
        if told == "told":
            assert not lines
            continue
        (line,) = lines
        assert f"{tmp_path}/file/step_0, was not saved" in line
        assert "is not a directory" in line
    # One that works says nothing.
    for _, error in ended(*ranks(FORGOTTEN, count, tmp_path / "run", told)):
        assert "save_async" not in error
    assert checkpoint.info(tmp_path / "run/step_0").step == 0


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


def test_workers_that_are_forked_during_a_save(tmp_path):
    """They hold no lock afterwards, and end."""
    state = {"x": torch.ones(2_000_000)}
    pending = checkpoint.save(tmp_path, state, step=1, asynchronous=True)
    loader = torch.utils.data.DataLoader(
        Numbers(), num_workers=2, persistent_workers=True
    )
    batches = iter(loader)
    assert next(batches).item() == 0
    pending.wait()
    # They are alive, and nobody is saving.
    checkpoint.save(tmp_path, state, step=2)
    checkpoint.save(tmp_path, state, step=3, asynchronous=True).wait()
    assert [b.item() for b in batches] == list(range(1, 8))


def test_a_fork_during_a_save_ends(tmp_path):
    """With all that Python and C register for the end."""
    with ts.simulate(4):
        state = {"x": torch.ones(20_000_000)}
        pending = checkpoint.save(tmp_path, state, step=1, asynchronous=True)
        child = os.fork()
        if child == 0:
            sys.stdout = sys.stderr = open(os.devnull, "w")
            atexit._run_exitfuncs()
            ctypes.CDLL(None).exit(5)
            os.abort()  # not reached
        status = None
        for _ in range(3000):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                break
            time.sleep(0.01)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child did not end")
        assert os.waitstatus_to_exitcode(status) == 5
        pending.wait()


def test_loops_check_their_arguments_when_they_are_made():
    state = {"x": torch.ones(1)}
    with pytest.raises(ValueError, match="got an empty path"):
        checkpoint.TrainingLoop("", state, total=1)
    with pytest.raises(ValueError, match=r"got 1, 100 and -1"):
        checkpoint.TrainingLoop("run", state, total=1, keep=-1)
    with pytest.raises(TypeError, match="PathLike"):
        checkpoint.TrainingLoop(3, state, total=1)


def test_mapped_files_may_be_replaced_and_removed(tmp_path):
    state = {"x": torch.arange(3_000_000.0)}
    path = checkpoint.save(tmp_path, state, step=1)
    mapped = checkpoint.load(path, mmap=True)["x"]
    checkpoint.save(tmp_path, {"x": torch.zeros(3_000_000)}, step=1)
    checkpoint.save(tmp_path, {"x": torch.zeros(10)}, step=2, keep=1)
    assert not os.path.exists(path)
    assert torch.equal(mapped, state["x"])
