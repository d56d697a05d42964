"""Unchanged torch.nn modules, distributed and trained like on one device."""

import copy
import io

import pytest
import torch
from torch import nn

import tessera as ts
from tessera import DTensor, Replicate, Shard
from tessera.debug import CommDebugMode


def shard_linears(name, module, mesh):
    if isinstance(module, nn.Linear):
        for key, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(
                key,
                nn.Parameter(ts.distribute_tensor(parameter, mesh, [Shard(0)])),
            )


def make_model():
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4)
    )


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


@pytest.mark.parametrize("partition", [None, shard_linears], ids=["R", "S"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_one_device(mesh, name, partition):
    plain = make_model()
    model = ts.distribute_module(copy.deepcopy(plain), mesh, partition)
    plain_optimizer = OPTIMIZERS[name](plain.parameters())
    optimizer = OPTIMIZERS[name](model.parameters())
    for _ in range(3):
        batch, target = torch.randn(8, 6), torch.randn(8, 4)
        nn.functional.mse_loss(plain(batch), target).backward()
        nn.functional.mse_loss(
            model(ts.distribute_tensor(batch, mesh, [Shard(0)])),
            ts.distribute_tensor(target, mesh, [Shard(0)]),
        ).backward()
        for ours, theirs in zip(model.parameters(), plain.parameters()):
            assert ours.grad.placements == ours.placements
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
        for each in (plain_optimizer, optimizer):
            each.step()
            each.zero_grad()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert isinstance(ours, DTensor)
        torch.testing.assert_close(
            ours.detach().full_tensor(), theirs.detach(), rtol=1e-4, atol=1e-5
        )


def test_replicated_gradients_are_one_all_reduce(mesh):
    model = ts.distribute_module(nn.Linear(4, 3, bias=False), mesh)
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    loss = model(x).square().sum()
    with CommDebugMode() as comm:
        loss.backward()
    assert comm.get_comm_counts() == {torch.ops.c10d_functional.all_reduce: 1}
    assert model.weight.grad.placements == (Replicate(),)


@pytest.mark.parametrize("name", ["sgd", "adamw", "adamw_foreach", "adagrad"])
def test_parameters_made_by_hand(mesh, name):
    """Their gradients may be pending sums; the step is right all the same."""
    plain = nn.Linear(4, 3, bias=False)
    model = copy.deepcopy(plain)
    model.weight = nn.Parameter(
        ts.distribute_tensor(plain.weight.detach(), mesh)
    )
    for each in (plain, model):
        x = torch.arange(32.0).view(8, 4) / 32
        if each is model:
            x = ts.distribute_tensor(x, mesh, [Shard(0)])
        optimizer = OPTIMIZERS[name](each.parameters())
        each(x).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(
        model.weight.detach().full_tensor(), plain.weight.detach()
    )


def test_distribution_is_in_place(mesh):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.weight
    assert ts.distribute_module(model, mesh) is model
    assert model.weight is weight and isinstance(weight, DTensor)
    model(ts.distribute_tensor(torch.randn(8, 4), mesh)).sum().backward()
    before = weight.detach().full_tensor().clone()
    optimizer.step()
    assert not torch.equal(weight.detach().full_tensor(), before)


def test_partition_sees_every_module_once(mesh):
    names = []
    model = ts.distribute_module(
        make_model(), mesh, lambda name, module, mesh: names.append(name)
    )
    assert names == ["", "0", "1", "2", "3"]
    assert all(p.placements == (Replicate(),) for p in model.parameters())


def test_buffers_and_again(mesh):
    model = nn.BatchNorm1d(4).eval()
    ts.distribute_module(model, mesh)
    assert isinstance(model.running_mean, DTensor)
    weight = model.weight
    ts.distribute_module(model, mesh)
    assert model.weight is weight


def test_input_and_output_functions(mesh):
    def input_fn(module, inputs, mesh):
        return ts.distribute_tensor(inputs[0], mesh, [Shard(0)])

    def output_fn(module, outputs, mesh):
        assert isinstance(outputs, DTensor)
        return outputs.full_tensor()

    plain = nn.Linear(4, 3)
    model = ts.distribute_module(
        copy.deepcopy(plain), mesh, None, input_fn, output_fn
    )
    x = torch.randn(8, 4)
    torch.testing.assert_close(model(x), plain(x))


def test_two_argument_functions_are_deprecated(mesh):
    def input_fn(inputs, mesh):
        return ts.distribute_tensor(inputs[0], mesh)

    def output_fn(outputs, mesh):
        return outputs.full_tensor()

    plain = nn.Linear(4, 3)
    with pytest.warns(FutureWarning, match="Deprecating") as warned:
        model = ts.distribute_module(
            copy.deepcopy(plain), mesh, None, input_fn, output_fn
        )
    assert len(warned) == 2 and warned[0].filename == __file__
    x = torch.randn(8, 4)
    torch.testing.assert_close(model(x), plain(x))
    with pytest.raises(ValueError, match="input_fn"):
        ts.distribute_module(nn.Linear(1, 1), mesh, None, lambda: None)


def test_state_dict(mesh):
    model = ts.distribute_module(make_model(), mesh, shard_linears)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = ts.distribute_module(make_model(), mesh, shard_linears)
    assert not torch.equal(other[0].weight, model[0].weight)
    other.load_state_dict(torch.load(buffer))
    for ours, theirs in zip(other.parameters(), model.parameters()):
        assert torch.equal(ours, theirs)


def test_module_to(mesh):
    model = ts.distribute_module(make_model(), mesh, shard_linears)
    model.to(torch.bfloat16)
    assert all(p.dtype is torch.bfloat16 for p in model.parameters())
    assert all(isinstance(p, DTensor) for p in model.parameters())
    x = ts.distribute_tensor(
        torch.randn(8, 6, dtype=torch.bfloat16), mesh, [Shard(0)]
    )
    assert model(x).dtype is torch.bfloat16


def test_clip_grad_norm(mesh):
    plain = make_model()
    model = ts.distribute_module(copy.deepcopy(plain), mesh, shard_linears)
    x = torch.randn(8, 6)
    plain(x).sum().backward()
    model(ts.distribute_tensor(x, mesh, [Shard(0)])).sum().backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch.testing.assert_close(norm.full_tensor(), expected)
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_embedding(mesh, placement):
    plain = nn.Embedding(10, 8)
    table = ts.distribute_module(
        copy.deepcopy(plain),
        mesh,
        lambda name, module, mesh: module.register_parameter(
            "weight",
            nn.Parameter(ts.distribute_tensor(module.weight, mesh, [placement])),
        ),
    )
    ids = torch.randint(0, 10, (4, 3))
    rows = table(ts.distribute_tensor(ids, mesh, [Replicate()]))
    assert isinstance(rows, DTensor)
    torch.testing.assert_close(rows.full_tensor(), plain(ids))
    rows.full_tensor().square().sum().backward()
    plain(ids).square().sum().backward()
    assert table.weight.grad.placements == (placement,)
    torch.testing.assert_close(
        table.weight.grad.full_tensor(), plain.weight.grad
    )
