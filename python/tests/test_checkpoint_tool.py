"""The command tessera-checkpoint."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

import tessera as ts
from tessera import Shard, _C, _command, checkpoint

BUILT = pathlib.Path(_C.__file__).parents[2] / "tools" / "tessera-checkpoint"
TOOL = str(BUILT) if BUILT.exists() else shutil.which("tessera-checkpoint")


def run(*arguments):
    assert TOOL, "tessera-checkpoint is not built"
    return subprocess.run(
        [TOOL, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(1)
    value = torch.randn(10, 4)
    with ts.simulate(4):
        mesh = ts.init_device_mesh("cpu", (4,))
        x = ts.distribute_tensor(value, mesh, [Shard(0)])
        for step in (1, 2):
            state = {"model": {"x": x}, "epoch": 7, "plain": torch.ones(3)}
            checkpoint.save(tmp_path / "run", state, step=step)
    return tmp_path / "run", value


def test_inspect(saved):
    root, _ = saved
    done = run("inspect", root)
    assert done.returncode == 0, done.stderr
    for text in ("step 2, saved by 4 ranks", "model.x", "[S(0)] on 4",
                 "160 B", "epoch = 7", "2 tensors, 172 B, whole"):
        assert text in done.stdout, text
    file = root / "step_2/data_0001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    done = run("inspect", root)
    assert done.returncode == 1
    assert "NOT WHOLE" in done.stdout and "data_0001" in done.stdout
    assert run("inspect", root / "step_1").returncode == 0


def test_reshard(saved, tmp_path):
    root, value = saved
    done = run("reshard", root / "step_2", "--ranks", 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(root / "step_2")
    # It is the same state: what was newer still is.
    for out in ([], ["--out", root]):
        again = run("reshard", root / "step_1", "--ranks", 2, *out)
        assert again.returncode == 0, again.stderr
        newest = [os.path.basename(p) for p in checkpoint.checkpoints_in(root)]
        assert newest == ["step_2", "step_1"]
    found = checkpoint.info(root / "step_2")
    assert (found.ranks, found.step, found.values["epoch"]) == (3, 2, "7")
    files = sorted(f.name for f in (root / "step_2").iterdir())
    assert files == [f"data_000{r}.safetensors" for r in range(3)] + [
        "manifest.json"
    ]
    assert torch.equal(checkpoint.load(root / "step_2")["model.x"], value)
    elsewhere = tmp_path / "elsewhere"
    assert run("reshard", root, "--ranks", 1, "--out", elsewhere).returncode == 0
    assert checkpoint.info(elsewhere / "step_2").ranks == 1


def test_merge(saved, tmp_path):
    root, value = saved
    file = tmp_path / "all.safetensors"
    done = run("merge", root / "step_1", file, "--prefix", "model.")
    assert done.returncode == 0, done.stderr
    tensors = checkpoint.load(file)
    assert list(tensors) == ["x"]
    assert torch.equal(tensors["x"], value)
    assert done.stdout.split() == [str(file)]
    done = run("merge", root, file, "--max-bytes", 1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(file) + ".index.json"
    assert not file.exists()
    done = run("merge", root, file, "--prefix", "no")
    assert done.returncode == 1
    assert "holds no tensor whose name begins with 'no'" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [(), ("inspect",), ("reshard", "x"), ("reshard", "x", "--ranks", "0"),
     ("merge", "x"), ("merge", "x", "y", "--max-bytes", "0"), ("turn", "x"), ("inspect", "x", "--ranks")],
    ids=lambda value: "_".join(value),
)
def test_wrong_command_lines(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage: tessera-checkpoint" in done.stderr


def test_nothing_there(tmp_path):
    done = run("inspect", tmp_path / "nothing")
    assert done.returncode == 1
    assert "there is nothing at" in done.stdout


def test_command_of_the_package(tmp_path, monkeypatch):
    """pip's script becomes the program in the package."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "tessera-checkpoint"
    program.symlink_to(TOOL)
    became = []
    monkeypatch.setattr(_command, "__file__", str(tmp_path / "_command.py"))
    monkeypatch.setattr(sys, "argv", ["any", "inspect", str(tmp_path)])
    monkeypatch.setattr(os, "execv", lambda *call: became.append(call))
    _command.main()
    ((path, arguments),) = became
    done = subprocess.run(
        arguments, executable=path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "holds neither a checkpoint" in done.stdout + done.stderr
