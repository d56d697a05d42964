"""load_state_dict between plain and distributed models, both ways."""

import copy

import pytest
import torch
from both_worlds import in_both_worlds
from processes import RANKS

import tessera as ts
from tessera import Replicate, Shard


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.up = torch.nn.Linear(6, 7)
        self.down = torch.nn.Linear(7, 3)

    def forward(self, ids):
        return self.down(self.up(self.norm(self.table(ids))).relu())


def shard(model, mesh):
    def layout(name, module, mesh):
        if name in ("table", "up"):
            for key, parameter in list(module.named_parameters(recurse=False)):
                ts.distribute_(parameter, mesh, [Shard(0)])
        elif name == "down":
            ts.distribute_(module.weight, mesh, [Shard(1)])

    return ts.distribute_module(model, mesh, layout)


def trained(model, optimizer, ids, steps=2):
    losses = []
    for _ in range(steps):
        loss = model(ids).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def models(mesh):
    torch.manual_seed(3)
    plain = Net()
    return plain, shard(Net(), mesh)


def same(plain, model):
    for key, value in model.state_dict().items():
        full = value.full_tensor() if isinstance(value, ts.DTensor) else value
        assert torch.allclose(full, plain.state_dict()[key], atol=1e-6), key


def body_plain_into_distributed(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    plain, model = models(mesh)
    result = model.load_state_dict(plain.state_dict())
    assert not result.missing_keys and not result.unexpected_keys
    assert model.table.weight.placements == (Shard(0),)
    assert model.down.weight.placements == (Shard(1),)
    assert model.down.bias.placements == (Replicate(),)
    same(plain, model)
    ids = torch.arange(8) % 11
    expected = trained(plain, torch.optim.Adam(plain.parameters()), ids)
    losses = trained(
        model,
        torch.optim.Adam(model.parameters()),
        ts.distribute_tensor(ids, mesh, [Shard(0)]),
    )
    assert losses == pytest.approx(expected, rel=1e-5)


def body_distributed_into_plain(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    plain, model = models(mesh)
    plain.load_state_dict(model.state_dict())
    assert not isinstance(plain.table.weight, ts.DTensor)
    same(plain, model)


def body_assign_keeps_the_layout(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    plain, model = models(mesh)
    model.load_state_dict(plain.state_dict(), assign=True)
    assert model.table.weight.placements == (Shard(0),)
    same(plain, model)
    # A plain module that is to take over what it is given becomes distributed.
    plain.load_state_dict(model.state_dict(), assign=True)
    assert plain.table.weight.placements == (Shard(0),)


def body_optimizers(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    plain, model = models(mesh)
    model.load_state_dict(plain.state_dict())
    ids = torch.arange(8) % 11
    sharded_ids = ts.distribute_tensor(ids, mesh, [Shard(0)])
    first = torch.optim.Adam(plain.parameters())
    trained(plain, first, ids)
    # A plain run goes on distributed, ...
    model.load_state_dict(plain.state_dict())
    second = torch.optim.Adam(model.parameters())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.state[model.table.weight]["exp_avg"].placements == (Shard(0),)
    expected = trained(plain, first, ids)
    assert trained(model, second, sharded_ids) == pytest.approx(expected, rel=1e-5)
    # ... and a distributed one plain.
    plain.load_state_dict(model.state_dict())
    # A copy, as torch shares what it loads.
    first.load_state_dict(copy.deepcopy(second.state_dict()))
    assert not isinstance(first.state[plain.table.weight]["exp_avg"], ts.DTensor)
    expected = trained(model, second, sharded_ids)
    assert trained(plain, first, ids) == pytest.approx(expected, rel=1e-5)


test_simulated, test_processes = in_both_worlds(
    body_plain_into_distributed,
    body_distributed_into_plain,
    body_assign_keeps_the_layout,
    body_optimizers,
)


def test_a_wrong_shape_is_named_as_torch_names_it(mesh):
    plain, model = models(mesh)
    state = plain.state_dict()
    state["up.weight"] = torch.zeros(8, 6)
    with pytest.raises(RuntimeError, match="size mismatch for up.weight"):
        model.load_state_dict(state)
    # The caller's dict is as it was.
    assert not any(isinstance(v, ts.DTensor) for v in state.values())
