"""tessera.checkpoint: any layout into any other, by names, in both worlds."""

import os
import warnings

import pytest
import torch
from both_worlds import in_both_worlds
from checkpoint_model import (
    Directory,
    KINDS,
    Model,
    full_state,
    make,
    mesh_of,
    same,
    sharded,
    train,
)
from processes import RANKS

import tessera as ts
from tessera import Shard, checkpoint


def body_resumed_losses_are_the_same_bits(here):
    mesh = mesh_of()
    for kind in KINDS:
        with Directory(here) as run:
            state = make(mesh, Shard(0), kind, 1)
            train(state, mesh, 3)
            checkpoint.save(run.path, state, step=3)
            expected = train(state, mesh, 4)
            again = make(mesh, Shard(0), kind, 2)
            found = checkpoint.load_latest(run.path, again)
            assert found.step == 3 and not found.skipped
            assert again["batches"].position == 3
            assert again["best"] != 0.0
            assert train(again, mesh, 4) == expected
            same(again["model"].state_dict(), state["model"].state_dict())
            groups = [o["optimizer"].param_groups for o in (again, state)]
            for group, other in zip(*groups):
                assert group["lr"] == other["lr"]


def body_resumed_on_other_meshes(here):
    mesh, square = mesh_of(), mesh_of(2, 2)
    for kind in KINDS:
        with Directory(here) as run:
            state = make(mesh, Shard(0), kind, 1)
            train(state, mesh, 3)
            checkpoint.save(run.path, state, step=3)
            expected = train(state, mesh, 4)
            again = make(square, Shard(1), kind, 2)
            # It has a state of its own by now.
            train(again, square, 1)
            checkpoint.load_latest(run.path, again)
            torch.testing.assert_close(train(again, square, 4), expected)


def body_maps_of_tensors(here):
    mesh = mesh_of()
    value = torch.randn(7, 5)
    state = {
        "x": ts.distribute_tensor(value, mesh, [Shard(0)]),
        "plain": value.clone(),
        "nested": {"list": [value + 1, 3], "text": "t", "pair": (1, 2.5)},
        "nothing": None,
    }
    with Directory(here) as run:
        path = checkpoint.save(run.path, state, step=5)
        assert path == run / "step_5"
        into = {
            "x": ts.zeros(7, 5, device_mesh=mesh, placements=[Shard(1)]),
            "plain": torch.zeros(7, 5),
            "nested": {"list": [torch.zeros(7, 5), 0], "text": "", "pair": 0},
            "nothing": 1,
        }
        checkpoint.load(path, into)
        assert into["x"].placements == (Shard(1),)
        assert torch.equal(into["x"].full_tensor(), value)
        assert torch.equal(into["plain"], value)
        assert torch.equal(into["nested"]["list"][0], value + 1)
        assert into["nested"]["list"][1] == 3
        assert into["nested"]["text"] == "t"
        assert into["nested"]["pair"] == (1, 2.5)
        assert into["nothing"] is None
        plain = checkpoint.load(path)
        assert torch.equal(plain["x"], value)
        assert not isinstance(plain["x"], ts.DTensor)
        assert list(checkpoint.load(path, names=["plain"])) == ["plain"]
        assert checkpoint.info(path).step == 5
        assert checkpoint.checkpoints_in(run.path) == [path]


def body_damage_is_found_and_left_out(here):
    mesh = mesh_of()
    with Directory(here) as run:
        for step in (1, 2):
            value = torch.full((64, 4), float(step))
            x = ts.distribute_tensor(value, mesh, [Shard(0)])
            checkpoint.save(run.path, {"x": x}, step=step)
        file = run / "step_2/data_0001.safetensors"
        if run.leads:
            with open(file, "r+b") as opened:
                opened.seek(-1, os.SEEK_END)
                opened.write(b"!")
        run.wait()
        into = {"x": ts.zeros(64, 4, device_mesh=mesh)}
        with pytest.raises(RuntimeError, match="data_0001.*tensor 'x'"):
            checkpoint.load(run / "step_2", into)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = checkpoint.load_latest(run.path, into)
        assert found.step == 1
        assert "data_0001" in found.skipped[0]
        assert any("step_2 is left out" in str(w.message) for w in caught)
        assert torch.equal(into["x"].full_tensor(), torch.ones(64, 4))


def body_saves_in_the_background(here):
    mesh = mesh_of()
    model = sharded(mesh, Shard(0))
    expected = full_state(model)
    with Directory(here) as run:
        pending = checkpoint.save(
            run.path, {"model": model}, step=1, asynchronous=True
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert pending.wait() == run / "step_1"
        assert pending.done()
        checkpoint.load(run / "step_1", {"model": model})
        same(full_state(model), expected)


def body_state_dicts_both_ways(here):
    """Plain weights into a distributed model and back, by load_state_dict."""
    mesh = mesh_of()
    torch.manual_seed(1)
    plain, model = Model(), sharded(mesh, Shard(0))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.normal_()
    model.load_state_dict(plain.state_dict())
    assert model.table.weight.placements == (Shard(0),)
    same(full_state(model), plain.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    expected = full_state(model)
    plain.load_state_dict(model.state_dict())
    assert not isinstance(plain.table.weight, ts.DTensor)
    same(plain.state_dict(), expected)


def body_a_rank_that_fails(here):
    """An error of one rank is raised on all."""
    mesh = mesh_of()
    x = ts.zeros(4, 2, device_mesh=mesh, placements=[Shard(0)])
    with Directory(here) as run:
        state = {"x": x}
        if here == [2]:
            state["more"] = x
        if len(here) == RANKS:
            return
        with pytest.raises(ValueError, match="rank 2 saves other tensors"):
            checkpoint.save(run.path, state)
        state = {"x": x, "bad": torch.zeros(2)}
        if here == [1]:
            state["bad"] = torch.zeros(2).to_sparse()
        with pytest.raises(NotImplementedError, match="'bad' .* \\(rank 1\\)"):
            checkpoint.save(run.path, state)
        assert checkpoint.checkpoints_in(run.path) == []


test_simulated, test_processes = in_both_worlds(
    body_resumed_losses_are_the_same_bits,
    body_resumed_on_other_meshes,
    body_maps_of_tensors,
    body_damage_is_found_and_left_out,
    body_saves_in_the_background,
    body_state_dicts_both_ways,
    body_a_rank_that_fails,
)
