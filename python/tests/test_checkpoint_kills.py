"""A few of the kills of checkpoint_kills.py, and restarts."""

import os
import pathlib
import subprocess
import sys

import pytest
from programs import run_program

HERE = pathlib.Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_kills():
    # A process of its own: this one may be in a world, or have threads.
    done = run_program(
        HERE / "checkpoint_kills.py", "--trials", 8, env=ENVIRONMENT, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 kills" in done.stdout


# Started by torchrun it trains; started alone it has torchrun's agent start
# functions, as forks: new interpreters import torch, which takes seconds.
PROGRAM = """
import os, signal, sys
import torch, tessera as ts
from tessera import Replicate, Shard, _world, checkpoint
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def train(root, how):
    rank = int(os.environ["RANK"])
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    torch.set_num_threads(1)
    torch.manual_seed(1)
    mesh = ts.init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3))
    ts.distribute_module(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = {}
    state = {"model": model, "optimizer": optimizer, "losses": []}
    loop = checkpoint.TrainingLoop(root, state, total=9, every=3)
    for step in loop:
        if how == "kill" and first and step == 7 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "term" and step == 4 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        x = ts.distribute_tensor(torch.full((2, 4), 1.0 + step), mesh, [Replicate()])
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        state["losses"].append(loss.full_tensor().item())
    if rank == 0:
        print("RESULT", loop.preempted, step, state["losses"], flush=True)

def train_in_a_fork(*arguments):
    train(*arguments)
    # It does not run what is registered with atexit.
    _world.leave()

if "RANK" in os.environ:
    train(*sys.argv[1:])
else:
    # As torchrun --standalone.
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=1,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork",
    )
    elastic_launch(config, train_in_a_fork)(*sys.argv[1:])
"""


def result_of(done):
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [l for l in done.stdout.splitlines() if l.startswith("RESULT")]
    _, preempted, step, losses = line.split(maxsplit=3)
    return preempted == "True", int(step), eval(losses)


def torchrun(program, root, how):
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", "2", "--max-restarts", "1", str(program),
            str(root), how,
        ],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    return result_of(done)


def agent(program, root, how):
    """Torchrun's, without its command line."""
    return result_of(run_program(program, root, how, env=ENVIRONMENT, timeout=170))


def test_restarts_and_preemption(tmp_path):
    """A killed rank costs steps, SIGTERM none: the losses are the same bits."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    preempted, step, expected = agent(program, tmp_path / "a", "nothing")
    assert (preempted, step, len(expected)) == (False, 8, 9)
    preempted, step, losses = torchrun(program, tmp_path / "b", "kill")
    assert (preempted, step) == (False, 8)
    assert losses == expected
    preempted, step, losses = agent(program, tmp_path / "c", "term")
    assert (preempted, step) == (True, 4)
    assert losses == expected[:5]
    assert agent(program, tmp_path / "c", "nothing")[2] == expected


@pytest.mark.parametrize("arguments", [(-1, 1), (1, 0)])
def test_wrong_arguments(tmp_path, arguments):
    from tessera import checkpoint

    total, every = arguments
    with pytest.raises(ValueError, match="expected a total"):
        checkpoint.TrainingLoop(tmp_path, {}, total=total, every=every)
