"""What programs do with tensors and modules, in both worlds."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from both_worlds import in_both_worlds
from processes import RANKS
from torch import nn

import tessera as ts
from tessera import DTensor, Replicate, Shard


def mesh_here():
    return ts.init_device_mesh("cpu", (RANKS,))


def layouts(mesh):
    value = torch.arange(24.0).view(6, 4)
    for placement in (Shard(0), Shard(1), Replicate()):
        yield ts.distribute_tensor(value, mesh, [placement])


def same(a, b):
    """Layout and shards; no message is sent for it."""
    assert a._spec == b._spec
    for ours, theirs in zip(a.detach().shards(), b.detach().shards()):
        assert torch.equal(ours, theirs)


def body_isinstance_and_repr(here):
    for x in layouts(mesh_here()):
        for distributed in (x, x + 1, x.t() @ x, nn.Parameter(x), x[0]):
            assert isinstance(distributed, DTensor)
            assert isinstance(distributed, torch.Tensor)
        assert not isinstance(x.full_tensor(), DTensor)
        assert [r for r in range(RANKS) if f"rank {r}:" in repr(x)] == here


def body_copies(here):
    for x in layouts(mesh_here()):
        x.requires_grad_()
        (x * x).sum().backward()
        again = copy.deepcopy(x)
        same(again, x)
        same(again.grad, x.grad)
        with torch.no_grad():
            again.zero_()
        assert x.detach().abs().sum().item() > 0


def body_pickles(here):
    for x in layouts(mesh_here()):
        same(pickle.loads(pickle.dumps(x)), x)
        for weights_only in (False, True):
            buffer = io.BytesIO()
            torch.save({"x": nn.Parameter(x)}, buffer)
            buffer.seek(0)
            again = torch.load(buffer, weights_only=weights_only)["x"]
            assert isinstance(again, nn.Parameter)
            same(again, x)


def body_comparisons(here):
    everything = list(layouts(mesh_here()))
    for a, b in itertools.product(everything, everything):
        assert torch.equal(a, b)
        assert not torch.equal(a, b + 1)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, b + 1e-7)


def body_unequal(here):
    """It fails; torch's report of where needs index_put_, which is refused."""
    for x in layouts(mesh_here()):
        with pytest.raises((AssertionError, RuntimeError)) as caught:
            torch.testing.assert_close(x, x + 1)
        reason = caught.value.__cause__ or caught.value
        assert "not close" in str(reason) or "index_put_" in str(reason)


def body_hooks(here):
    for x in layouts(mesh_here()):
        x.requires_grad_()
        seen = []
        x.register_hook(lambda grad: seen.append(isinstance(grad, DTensor)))
        x.register_post_accumulate_grad_hook(lambda t: seen.append(t is x))
        (x * 3).sum().backward()
        assert seen == [True, True]


def body_modes(here):
    for x in layouts(mesh_here()):
        whole = x.full_tensor()
        x.requires_grad_()
        with torch.no_grad():
            assert not (x * 2).requires_grad
        with torch.inference_mode():
            y = x * 2
            assert y.is_inference() and isinstance(y, DTensor)
            assert torch.equal(y.full_tensor(), whole * 2)
    linear = ts.distribute_module(nn.Linear(4, 8), mesh_here())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = linear(ts.distribute_tensor(torch.randn(8, 4), mesh_here()))
    assert y.dtype is torch.bfloat16 and isinstance(y, DTensor)
    y.sum().backward()
    assert linear.weight.grad.dtype is torch.float32


def make_model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def shard_linears(name, module, mesh):
    for key, parameter in list(module.named_parameters(recurse=False)):
        module.register_parameter(
            key, nn.Parameter(ts.distribute_tensor(parameter, mesh, [Shard(0)]))
        )


def body_modules(here):
    mesh = mesh_here()
    model = ts.distribute_module(make_model(), mesh, shard_linears)
    other = ts.distribute_module(make_model(), mesh, shard_linears)
    other.load_state_dict(model.state_dict())
    for ours, theirs in zip(other.parameters(), model.parameters()):
        same(ours, theirs)
    model.to(torch.bfloat16)
    assert all(p.dtype is torch.bfloat16 for p in model.parameters())
    assert all(isinstance(p, DTensor) for p in model.parameters())
    same(copy.deepcopy(other)[0].weight, other[0].weight)


OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": False}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (torch.optim.Adam, {"lr": 0.01, "foreach": False}),
    (torch.optim.Adam, {"lr": 0.01, "foreach": True}),
    (torch.optim.Adam, {"lr": 0.01, "fused": True}),
    (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    (torch.optim.Adagrad, {"lr": 0.05, "foreach": False}),
    (torch.optim.Adagrad, {"lr": 0.05, "foreach": True}),
    (torch.optim.Adagrad, {"lr": 0.05, "fused": True}),
]


def body_optimizers(here):
    mesh = mesh_here()
    for (kind, options), partition in itertools.product(
        OPTIMIZERS, (None, shard_linears)
    ):
        plain = make_model()
        model = ts.distribute_module(copy.deepcopy(plain), mesh, partition)
        optimizers = [
            kind(each.parameters(), **options) for each in (plain, model)
        ]
        for _ in range(2):
            x, y = torch.randn(8, 6), torch.randn(8, 4)
            nn.functional.mse_loss(plain(x), y).backward()
            nn.functional.mse_loss(
                model(ts.distribute_tensor(x, mesh, [Shard(0)])),
                ts.distribute_tensor(y, mesh, [Shard(0)]),
            ).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for ours, theirs in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(
                ours.detach().full_tensor(),
                theirs.detach(),
                rtol=1e-4,
                atol=1e-5,
                msg=lambda text: f"{kind.__name__} {options}: {text}",
            )


test_simulated, test_processes = in_both_worlds(
    body_isinstance_and_repr,
    body_copies,
    body_pickles,
    body_comparisons,
    body_unequal,
    body_hooks,
    body_modes,
    body_modules,
    body_optimizers,
)
