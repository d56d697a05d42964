"""Saving and loading: files say whose shards they hold; full ones are full."""

import copy
import io
import os
import pickle
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from both_worlds import in_both_worlds
from processes import RANKS, run
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import tessera as ts
from tessera import Replicate, Shard


def make_mesh():
    return ts.init_device_mesh("cpu", (RANKS,))


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def loaded(data):
    return torch.load(io.BytesIO(data), weights_only=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.linear = nn.Linear(4, 3)

    def forward(self, ids):
        return self.linear(self.table(ids))


def plain_model():
    torch.manual_seed(3)
    return Model()


def sharded_model(mesh, model=None):
    def shard(name, module, mesh):
        if name == "table":
            ts.distribute_(module.weight, mesh, [Shard(0)])
        elif name == "linear":
            ts.distribute_(module.weight, mesh, [Shard(1)])

    return ts.distribute_module(model or plain_model(), mesh, shard)


FULL = StateDictOptions(full_state_dict=True)


def step(model, optimizer, ids):
    optimizer.zero_grad()
    model(ids).square().sum().backward()
    optimizer.step()


def same(state, expected):
    """Whether two state dicts hold equal plain tensors."""
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert not isinstance(state[key], ts.DTensor), key
        torch.testing.assert_close(state[key], value)


# ---- files of torch.save ----


def body_a_file_of_ones_own(here):
    mesh = make_mesh()
    value = torch.randn(6, 3)
    for placement in (Shard(0), Shard(1), Replicate()):
        x = ts.distribute_tensor(value, mesh, [placement])
        again = loaded(saved({"x": x}))["x"]
        assert again.placements == x.placements
        assert torch.equal(again.full_tensor(), value)


def body_full_state_dicts(here):
    mesh = make_mesh()
    expected, model = plain_model(), sharded_model(mesh)
    same(get_model_state_dict(model, options=FULL), expected.state_dict())
    # Without the option they stay as they are.
    sharded = get_model_state_dict(model)
    assert sharded["table.weight"].placements == (Shard(0),)


def body_full_optimizer_state_dicts(here):
    mesh = make_mesh()
    expected, model = plain_model(), sharded_model(mesh)
    ids = torch.tensor([0, 6, 3, 3])
    states = []
    for m, batch in (
        (expected, ids),
        (model, ts.distribute_tensor(ids, mesh, [Replicate()])),
    ):
        optimizer = torch.optim.AdamW(m.parameters(), lr=0.1)
        step(m, optimizer, batch)
        state = get_optimizer_state_dict(m, optimizer, options=FULL)
        states.append(state["state"])
    for name, values in states[0].items():
        same(states[1][name], values)


def body_full_state_dicts_are_set(here):
    mesh = make_mesh()
    expected = plain_model()
    model = sharded_model(mesh, Model())
    set_model_state_dict(model, expected.state_dict(), options=FULL)
    assert model.table.weight.placements == (Shard(0),)
    assert model.linear.weight.placements == (Shard(1),)
    same(get_model_state_dict(model, options=FULL), expected.state_dict())


def body_full_optimizer_states_are_set(here):
    mesh = make_mesh()
    ids = ts.distribute_tensor(torch.tensor([0, 6, 3]), mesh, [Replicate()])
    model, other = sharded_model(mesh), sharded_model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer, ids)
    # A file, as it were: the dict shares the count of steps with the optimizer.
    full = copy.deepcopy(
        get_optimizer_state_dict(model, optimizer, options=FULL)
    )
    set_model_state_dict(
        other, get_model_state_dict(model, options=FULL), options=FULL
    )
    resumed = torch.optim.AdamW(other.parameters(), lr=0.1)
    set_optimizer_state_dict(other, resumed, full, options=FULL)
    for m, o in ((model, optimizer), (other, resumed)):
        step(m, o, ids)
    same(
        get_model_state_dict(other, options=FULL),
        get_model_state_dict(model, options=FULL),
    )


test_simulated, test_processes = in_both_worlds(
    body_a_file_of_ones_own,
    body_full_state_dicts,
    body_full_optimizer_state_dicts,
    body_full_state_dicts_are_set,
    body_full_optimizer_states_are_set,
)


def one_file_for_all(rank):
    """What rank 0 wrote is refused elsewhere, by name."""
    mesh = make_mesh()
    model = sharded_model(mesh)
    data = [saved(model.state_dict())]
    dist.broadcast_object_list(data, src=0)
    if rank == 0:
        weight = loaded(data[0])["table.weight"]
        assert torch.equal(weight.to_local(), model.table.weight.to_local())
    else:
        with pytest.raises(ValueError, match="holds the shard of rank 0") as e:
            loaded(data[0])
        assert f"needs the shard of rank {rank}" in str(e.value)
        assert "world of 4 ranks" in str(e.value)
    # One copy of a replicated tensor is as good as another.
    data = [saved(model.linear.bias.detach())]
    dist.broadcast_object_list(data, src=0)
    bias = loaded(data[0])
    assert torch.equal(bias.full_tensor(), plain_model().linear.bias.detach())


def test_one_file_for_all():
    run(one_file_for_all)


def of_a_simulated_world(rank):
    """A file of all ranks holds each one's own shard."""
    data = saved(torch.arange(6.0))
    with ts.simulate(RANKS):
        x = ts.distribute_tensor(torch.arange(6.0), make_mesh(), [Shard(0)])
        data = saved(x)
    y = loaded(data)
    assert torch.equal(y.full_tensor(), torch.arange(6.0))
    mine = saved(y)
    with ts.simulate(RANKS):
        with pytest.raises(ValueError, match=f"the shard of rank {rank} of"):
            loaded(mine)


def test_files_cross_between_worlds():
    run(of_a_simulated_world)


@pytest.mark.parametrize("size", [2, 8])
def test_another_world(size):
    with ts.simulate(RANKS):
        x = ts.distribute_tensor(torch.arange(6.0), make_mesh(), [Shard(0)])
        data, pickled = saved(x), pickle.dumps(x)
    with ts.simulate(size):
        for load in (lambda: loaded(data), lambda: pickle.loads(pickled)):
            with pytest.raises(ValueError, match="a world of 4 ranks"):
                load()


def test_sub_meshes():
    """Ranks outside the mesh hold nothing; the file says so."""
    with ts.simulate(RANKS):
        mesh = ts.DeviceMesh("cpu", [3, 1])
        x = ts.distribute_tensor(torch.arange(5.0), mesh, [Shard(0)])
        again = loaded(saved(x))
        assert again.device_mesh == mesh
        assert torch.equal(again.full_tensor(), torch.arange(5.0))
        assert torch.equal(again.shard(3), torch.arange(3.0))


# ---- torch.distributed.checkpoint over processes ----


def only_rank_0_keeps(rank):
    mesh = make_mesh()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(sharded_model(mesh), options=options)
    if rank == 0:
        same(state, plain_model().state_dict())
    else:
        assert state == {}


def broadcast_from_rank_0(rank):
    mesh = make_mesh()
    model = sharded_model(mesh, Model())
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    state = plain_model().state_dict() if rank == 0 else {}
    set_model_state_dict(model, state, options=options)
    assert model.table.weight.placements == (Shard(0),)
    same(get_model_state_dict(model, options=FULL), plain_model().state_dict())


def files_of_dcp_are_refused(rank):
    mesh = make_mesh()
    state = sharded_model(mesh).state_dict()
    path = [tempfile.mkdtemp()]
    dist.broadcast_object_list(path, src=0)
    with pytest.raises(BaseException, match="DTensor.*full_state_dict"):
        dcp.save(state, checkpoint_id=os.path.join(path[0], "save"))
    plain = {
        key: value.full_tensor().clone() if isinstance(value, ts.DTensor) else 0
        for key, value in state.items()
    }
    dcp.save(plain, checkpoint_id=os.path.join(path[0], "plain"))
    with pytest.raises(BaseException, match="DTensor.*full_state_dict"):
        dcp.load(state, checkpoint_id=os.path.join(path[0], "plain"))


def all_of_dcp(rank):
    only_rank_0_keeps(rank)
    broadcast_from_rank_0(rank)
    files_of_dcp_are_refused(rank)


def test_dcp():
    run(all_of_dcp)
