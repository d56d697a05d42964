"""What torch's users do with tensors, done with distributed ones."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import tessera as ts
from tessera import DTensor, Partial, Replicate, Shard


@pytest.fixture
def x(mesh):
    return ts.distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)])


def test_repr(x):
    text = repr(x)
    assert text.startswith("DTensor(")
    assert "S(0)" in text and "rank 3" in text
    with ts.debug.CommDebugMode() as comm:
        str(x), f"{x}", repr(nn.Parameter(x)), repr(x.requires_grad_() * 2)
    assert comm.get_total_counts() == 0
    assert repr(nn.Parameter(x)).startswith("Parameter containing:\nDTensor(")
    assert "requires_grad=True" in repr(x)
    assert "grad_fn=" in repr(x * 2)
    assert repr(torch.ones(1)) == "tensor([1.])"


def test_deepcopy(x):
    x.requires_grad_()
    x.sum().backward()
    again = copy.deepcopy(x)
    assert isinstance(again, DTensor) and again.requires_grad
    assert again._spec == x._spec
    assert torch.equal(again.full_tensor(), x.full_tensor())
    assert torch.equal(again.grad.full_tensor(), x.grad.full_tensor())
    with torch.no_grad():
        again.zero_()
    assert x.detach().full_tensor().abs().sum() > 0
    shared = copy.deepcopy([x, x])
    assert shared[0] is shared[1]
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(x * 2)
    parameter = copy.deepcopy(nn.Parameter(x.detach()))
    assert isinstance(parameter, nn.Parameter)
    assert isinstance(parameter, DTensor)


def _layouts(mesh):
    yield ts.distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)])
    yield ts.distribute_tensor(torch.randn(6, 4).t(), mesh, [Shard(1)])
    yield ts.distribute_tensor(torch.randn(3), mesh).requires_grad_()
    yield DTensor.from_local(torch.ones(2), mesh, [Partial("max")])
    yield nn.Parameter(ts.distribute_tensor(torch.ones(5), mesh, [Shard(0)]))


@pytest.mark.parametrize("how", ["pickle", "torch.save", "weights_only"])
def test_pickle_and_save(mesh, how):
    for x in _layouts(mesh):
        buffer = io.BytesIO()
        if how == "pickle":
            pickle.dump(x, buffer)
            buffer.seek(0)
            again = pickle.load(buffer)
        else:
            torch.save({"x": x}, buffer)
            buffer.seek(0)
            again = torch.load(buffer, weights_only=how == "weights_only")["x"]
        assert type(again) is type(x) and isinstance(again, DTensor)
        assert again._spec == x._spec
        assert again.requires_grad == x.requires_grad
        assert torch.equal(
            again.detach().full_tensor(), x.detach().full_tensor()
        )


def test_load_into_another_world_is_refused():
    with ts.simulate(4):
        mesh = ts.init_device_mesh("cpu", (4,))
        data = pickle.dumps(ts.ones(8, device_mesh=mesh))
    with ts.simulate(2), pytest.raises(ValueError):
        pickle.loads(data)


def test_equal_and_assert_close(x, mesh):
    same = x.clone()
    assert torch.equal(x, same)
    assert not torch.equal(x, x + 1)
    torch.testing.assert_close(x, same)
    torch.testing.assert_close(x, same.redistribute(mesh, [Replicate()]))


def test_hooks(x):
    x.requires_grad_()
    seen = []
    x.register_hook(lambda grad: seen.append(isinstance(grad, DTensor)))
    (x * 3).sum().backward()
    assert seen == [True]


def test_no_grad_and_inference_mode(x):
    x.requires_grad_()
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        assert y.is_inference() and isinstance(y, DTensor)
        assert torch.equal(y.full_tensor(), x.full_tensor() * 2)


def test_autocast(mesh):
    linear = ts.distribute_module(nn.Linear(4, 8), mesh)
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = linear(x)
    assert y.dtype is torch.bfloat16 and isinstance(y, DTensor)


def test_casts_and_meta(x, mesh):
    assert x.to(torch.bfloat16).placements == (Shard(0),)
    assert x.double().dtype is torch.float64
    meta = ts.distribute_tensor(torch.empty(8, 2, device="meta"), mesh, [Shard(0)])
    assert meta.is_meta and isinstance(meta, DTensor)
    real = torch.empty_like(meta, device="cpu")
    assert isinstance(real, DTensor) and not real.is_meta
    assert real.shard(0).shape == (2, 2)


def test_item_and_iteration(mesh):
    x = ts.distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    assert x.sum().item() == 6
    assert float(x.max()) == 3
    assert bool((x >= 0).all())
    assert len(x) == 4


def test_storage_says_the_way_out(x):
    for reach in (lambda: x.data_ptr(), lambda: x.numpy()):
        with pytest.raises(RuntimeError, match="full_tensor|to_local"):
            reach()


@pytest.mark.parametrize("in_dim", [0, 1])
@pytest.mark.parametrize(
    "function",
    [torch.sin, torch.sum, lambda t: t[:, None] @ t[None, :], lambda t: t * t],
    ids=["sin", "sum", "outer", "square"],
)
def test_vmap(x, function, in_dim):
    result = torch.vmap(function, in_dims=in_dim)(x)
    assert isinstance(result, DTensor)
    expected = torch.vmap(function, in_dims=in_dim)(x.full_tensor())
    torch.testing.assert_close(result.full_tensor(), expected)


def test_func_grad(x):
    grad = torch.func.grad(lambda t: (t * t).sum())(x)
    torch.testing.assert_close(grad.full_tensor(), 2 * x.full_tensor())


@pytest.mark.parametrize(
    "error, call",
    [
        (ValueError, lambda x: ts.Partial("no")),
        (IndexError, lambda x: x.shard(77)),
        (TypeError, lambda x: ts.debug.sharding_text(torch.ones(1))),
        (NotImplementedError, lambda x: x.resize_(2, 2)),
        (RuntimeError, lambda x: x + torch.ones(6, 4)),
    ],
)
def test_errors_have_pythons_types(x, error, call):
    with pytest.raises(error) as caught:
        call(x)
    assert caught.type is error
    assert "Exception raised from" not in str(caught.value)
