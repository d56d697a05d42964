"""What cannot work says so; what is plain goes on working beside it."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import tessera as ts
from tessera import Partial, Shard


@pytest.fixture
def x(mesh):
    return ts.distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)])


@pytest.fixture(autouse=True)
def _forget_compiled():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compile(x, fullgraph):
    compiled = torch.compile(
        lambda t: t + 1, backend="eager", fullgraph=fullgraph
    )
    with pytest.raises(
        Exception, match=r"\[torch.compile\].*\(DTensor\).*to_local\(\)"
    ):
        compiled(x)


def test_compile_of_a_distributed_module(mesh):
    model = ts.distribute_module(nn.Linear(4, 2), mesh)
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(Exception, match=r"\[torch.compile\].*\(DTensor\)"):
        compiled(ts.distribute_tensor(torch.randn(6, 4), mesh))


def test_fake_tensors(x):
    for fake in (
        lambda: FakeTensorMode().from_tensor(x),
        lambda: FakeTensorMode(allow_non_fake_inputs=True).from_tensor(x),
        lambda: FakeTensorMode().from_tensor(nn.Parameter(x)),
    ):
        with pytest.raises(
            NotImplementedError, match=r"\[FakeTensorMode\].*\(DTensor\)"
        ):
            fake()


def test_ops_under_a_fake_mode(x):
    with pytest.raises(Exception, match="DTensor"):
        with FakeTensorMode():
            x + 1
    with pytest.raises(NotImplementedError, match=r"\(DTensor\)"):
        with FakeTensorMode(allow_non_fake_inputs=True):
            x + 1


def test_export(x):
    with pytest.raises(Exception, match=r"\(DTensor\) cannot be traced"):
        torch.export.export(nn.ReLU(), (x,))


def test_plain_tensors_compile():
    linear, ids = nn.Linear(4, 2), torch.randn(3, 4)
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids), linear(ids))
    fake = FakeTensorMode().from_tensor(ids)
    assert (fake + 1).shape == ids.shape


@pytest.mark.parametrize("name", ["to_local", "placements", "_spec"])
def test_compiled_code_sees_no_attributes_on_plain_tensors(name):
    compiled = torch.compile(
        lambda t: t * 3 if hasattr(t, name) else t + 1,
        backend="eager",
        fullgraph=True,
    )
    assert compiled(torch.ones(1)).item() == 2


def test_compiled_code_may_ask_for_the_class():
    compiled = torch.compile(
        lambda t: t.to_local() if isinstance(t, ts.DTensor) else t + 1,
        backend="eager",
        fullgraph=True,
    )
    assert compiled(torch.ones(1)).item() == 2


def test_torch_overrides_reads_the_class():
    """torch.compile asks it for every attribute of torch.Tensor."""
    torch.overrides._get_overridable_functions.cache_clear()
    functions = torch.overrides.get_overridable_functions()
    assert torch.Tensor.add in functions[torch.Tensor]


def test_attributes_of_others_are_left_alone():
    plain = torch.ones(2)
    plain.placements = "mine"
    plain.to_local = lambda: 3
    assert plain.placements == "mine" and plain.to_local() == 3
    del plain.placements
    assert not hasattr(plain, "placements")
    with pytest.raises(AttributeError, match="placements"):
        del plain.placements

    class Wrapped(torch.Tensor):
        pass

    wrapped = torch.ones(2).as_subclass(Wrapped)
    wrapped._local_tensor = plain
    assert wrapped._local_tensor is plain


def test_the_layout_is_not_assigned(x):
    for name in ("placements", "device_mesh", "_spec", "_local_tensor"):
        with pytest.raises(AttributeError, match="redistribute"):
            setattr(x, name, None)
    with pytest.raises(TypeError, match="needs a tensor"):
        vars(torch.Tensor)["to_local"]()


def test_mixing_names_the_plain_argument(x):
    plain = torch.randn(6, 4)
    for call, name in (
        (lambda: x + plain, "'other'"),
        (lambda: plain + x, "'self'"),
        (lambda: torch.cat([x, plain]), "'tensors'"),
    ):
        with pytest.raises(RuntimeError, match=name) as caught:
            call()
        assert "distribute_tensor" in str(caught.value)


def test_in_place_keeps_the_layout_or_raises(mesh):
    terms = ts.DTensor.from_local(torch.randn(4), mesh, [Partial()])
    with pytest.raises(NotImplementedError, match="aten.relu_.default"):
        terms.relu_()
    x = ts.distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)])
    assert x.relu_().placements == (Shard(0),)


def test_views_alias(mesh):
    value = torch.arange(24.0).view(4, 6)
    x = ts.distribute_tensor(value, mesh, [Shard(1)])
    x.t().mul_(2)
    assert torch.equal(x.full_tensor(), 2 * value)
    # Columns are no part of the flat view: it had to be copied.
    flat = x.view(-1)
    flat.add_(1)
    assert torch.equal(x.full_tensor(), 2 * value + 1)
    x.mul_(2)
    assert torch.equal(flat.full_tensor(), (4 * value + 2).view(-1))


def test_storage_is_not_changed(x):
    for change in (
        lambda: x.resize_(2, 2),
        lambda: x.set_(),
        lambda: x.is_set_to(x),
    ):
        with pytest.raises(
            NotImplementedError, match="does not have a sharding strategy"
        ):
            change()
