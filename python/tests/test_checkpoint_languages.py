"""A run goes on in the other language: the same state, options included."""

import math
import pathlib
import subprocess

import pytest
import torch
from torch import nn, optim

import tessera as ts
from tessera import _C, Shard, checkpoint
from tessera._checkpoint_state import decode

PROGRAM = pathlib.Path(_C.__file__).parents[1] / "resume_in_cpp"
# What no default is. Both languages have these.
OPTIONS = {
    "Adam": {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.01,
             "amsgrad": True},
    "AdamW": {"betas": (0.7, 0.9), "eps": 1e-5, "weight_decay": 0.2},
    "Adagrad": {"lr_decay": 0.01, "eps": 1e-7, "weight_decay": 0.03,
                "initial_accumulator_value": 0.5},
    "RMSprop": {"alpha": 0.8, "eps": 1e-6, "momentum": 0.4, "centered": True,
                "weight_decay": 0.02},
    "SGD": {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.linear = nn.Linear(8, 3)

    def forward(self, ids):
        return self.linear(self.table(ids))


def state_of(name, seed, rate, **options):
    torch.manual_seed(seed)
    model = Model()
    mesh = ts.init_device_mesh("cpu", (4,))
    ts.distribute_(model.table.weight, mesh, [Shard(1)])
    ts.distribute_module(model, mesh)
    groups = [
        {"params": list(model.table.parameters()), "lr": rate},
        {"params": list(model.linear.parameters()), "lr": rate / 3},
    ]
    optimizer = getattr(optim, name)(groups, lr=rate, **options)
    return {"model": model, "optimizer": optimizer}


def train(state, begin, end):
    mesh = ts.init_device_mesh("cpu", (4,))
    for step in range(begin, end):
        ids = (torch.arange(6) + step) % 11
        state["optimizer"].zero_grad()
        out = state["model"](ts.distribute_tensor(ids, mesh))
        out.square().sum().backward()
        state["optimizer"].step()


def same(found, expected):
    pairs = zip(found["model"].parameters(), expected["model"].parameters())
    for mine, other in pairs:
        torch.testing.assert_close(mine.full_tensor(), other.full_tensor())


@pytest.mark.parametrize("name", OPTIONS)
def test_there_and_back(tmp_path, name):
    assert PROGRAM.exists(), "resume_in_cpp is not built"
    with ts.simulate(4):
        state = state_of(name, 1, 0.06, **OPTIONS[name])
        train(state, 0, 3)
        checkpoint.save(tmp_path, state, step=3)
        train(state, 3, 6)
        done = subprocess.run(
            [PROGRAM, tmp_path, name, "3"], capture_output=True, text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        again = state_of(name, 2, 0.5)
        found = checkpoint.load_latest(tmp_path, again)
        assert found.step == 6
        same(again, state)
        for mine, other in zip(
            again["optimizer"].param_groups, state["optimizer"].param_groups
        ):
            for option in ("lr", *OPTIONS[name]):
                assert mine[option] == other[option], option
        for one in (again, state):
            train(one, 6, 9)
        same(again, state)


def test_numbers_that_json_lacks(tmp_path):
    """An option may be infinite, in either language."""
    with ts.simulate(4):
        state = state_of("SGD", 1, 0.1)
        state["optimizer"].param_groups[0]["bound"] = math.inf
        state["optimizer"].param_groups[1]["bound"] = [math.nan, -math.inf]
        checkpoint.save(tmp_path, state, step=1)
        again = state_of("SGD", 2, 0.1)
        checkpoint.load_latest(tmp_path, again)
    first, second = again["optimizer"].param_groups
    assert first["bound"] == math.inf
    assert math.isnan(second["bound"][0]) and second["bound"][1] == -math.inf
    done = subprocess.run(
        [PROGRAM, tmp_path, "SGD", "1"], capture_output=True, text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_texts_of_other_programs():
    """A value that a C++ program set may be JSON of its own."""
    texts = {"a": '{"b": 1}', "c": '{"d": [[1, 2]]}', "e": "no JSON", "f": "3"}
    found = decode(texts)
    assert found == {**texts, "f": 3}
