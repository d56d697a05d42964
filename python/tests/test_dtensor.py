"""Making, asking and unmaking distributed tensors on simulated ranks."""

import pytest
import torch
from torch import nn

import tessera as ts
from tessera import DTensor, Partial, Replicate, Shard


def test_distribute_tensor(mesh):
    value = torch.randn(10, 3)
    x = ts.distribute_tensor(value, mesh, [Shard(0)])
    assert isinstance(x, DTensor) and isinstance(x, torch.Tensor)
    assert x.shape == value.shape
    assert x.placements == (Shard(0),)
    assert x.device_mesh == mesh
    assert [s.shape[0] for s in x.shards()] == [3, 3, 3, 1]
    assert torch.equal(x.shard(1), value[3:6])
    assert torch.equal(x.full_tensor(), value)
    assert ts.distribute_tensor(value, mesh).placements == (Replicate(),)
    assert ts.distribute_tensor(x, mesh, [Shard(0)]) is x
    known = ts.distribute_tensor(value, mesh, [Shard(1)], src_data_rank=None)
    assert torch.equal(known.full_tensor(), value)


def test_isinstance_of_results(mesh):
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    assert isinstance(x + 1, DTensor)
    assert isinstance(x.t() @ x, DTensor)
    assert isinstance(nn.Parameter(x), DTensor)
    assert isinstance(nn.Parameter(x), nn.Parameter)
    for plain in (torch.ones(2), nn.Parameter(torch.ones(2)), 1, None, mesh):
        assert not isinstance(plain, DTensor)
    assert issubclass(DTensor, torch.Tensor)


def test_plain_tensors_gain_no_attributes():
    plain = torch.ones(2)
    for name in (
        "placements",
        "device_mesh",
        "redistribute",
        "to_local",
        "full_tensor",
        "shard",
        "shards",
        "_spec",
        "_local_tensor",
    ):
        assert not hasattr(plain, name)
        assert not hasattr(nn.Parameter(plain), name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(plain, name)


def test_methods_of_the_class(mesh):
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    assert torch.equal(DTensor.full_tensor(x), x.full_tensor())
    assert DTensor.redistribute(x, mesh, [Replicate()]).placements == (
        Replicate(),
    )
    assert "layout" in DTensor.redistribute.__doc__
    with pytest.raises(TypeError, match="distribute_tensor"):
        DTensor(torch.ones(2))


def test_spec(mesh):
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(1)])
    spec = x._spec
    assert spec == (x + 1)._spec
    assert spec.mesh == mesh and spec.placements == (Shard(1),)
    assert (spec.shape, spec.stride, spec.ndim) == ((8, 4), (4, 1), 2)
    assert spec.dtype is torch.float32
    assert spec != x.to(torch.float64)._spec


def test_from_local(mesh):
    locals_ = [torch.full((n, 2), float(n)) for n in (2, 2, 1, 0)]
    x = DTensor.from_local(
        locals_, mesh, [Shard(0)], shape=torch.Size((5, 2)), stride=(2, 1)
    )
    assert torch.equal(x.full_tensor(), torch.cat(locals_))
    same = DTensor.from_local(torch.ones(3), mesh)
    assert same.placements == (Replicate(),)
    terms = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    assert torch.equal(terms.full_tensor(), torch.full((3,), 4.0))
    with pytest.raises(ValueError, match="shape"):
        DTensor.from_local(locals_, mesh, [Shard(0)])
    with pytest.raises(TypeError, match="expected a tensor"):
        DTensor.from_local(3, mesh)


def test_from_local_is_differentiable(mesh):
    locals_ = [torch.randn(2, 3, requires_grad=True) for _ in range(4)]
    x = DTensor.from_local(locals_, mesh, [Shard(0)])
    (x * x).sum().backward()
    for local in locals_:
        torch.testing.assert_close(local.grad, 2 * local.detach())


def test_to_local(mesh):
    x = ts.distribute_tensor(torch.randn(8), mesh, [Shard(0)])
    for read in (
        lambda: x.to_local(),
        lambda: x._local_tensor,
        lambda: x.to_local(grad_placements=[Shard(0)]),
        lambda: DTensor.to_local(x),
        lambda: (x.to_local)(),
    ):
        with pytest.raises(RuntimeError, match=r"\[to_local\].*shard"):
            read()
    with ts.simulate(1):
        alone = ts.init_device_mesh("cpu", (1,))
        y = ts.distribute_tensor(torch.arange(3.0), alone, [Shard(0)])
        assert torch.equal(y.to_local(), torch.arange(3.0))
        assert torch.equal(y._local_tensor, torch.arange(3.0))


@pytest.mark.parametrize("to", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize("start", [Replicate(), Shard(0), Shard(-1)], ids=str)
def test_redistribute(mesh, start, to):
    value = torch.randn(5, 6)
    x = ts.distribute_tensor(value, mesh, [start]).requires_grad_()
    y = x.redistribute(mesh, [to])
    assert y.placements == (to,)
    assert torch.equal(y.full_tensor(), value)
    (y * y).sum().backward()
    torch.testing.assert_close(x.grad.full_tensor(), 2 * value)
    assert x.grad.placements == x.placements


def test_redistribute_errors(mesh):
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    with pytest.raises(RuntimeError, match="placements is needed"):
        x.redistribute(mesh)
    with pytest.raises(ValueError, match="Partial|P\\(sum\\)"):
        x.redistribute(mesh, [Partial()])
    with pytest.raises(TypeError, match="list of placements"):
        x.redistribute(mesh, Shard(0))
    with pytest.raises(TypeError, match="expected placements"):
        x.redistribute(mesh, ["S(0)"])
    with pytest.raises(NotImplementedError, match="cross-mesh"):
        x.redistribute(ts.init_device_mesh("cpu", (2,)), [Replicate()])
    with pytest.raises(IndexError, match="rank 9"):
        x.shard(9)


def test_full_tensor_grad(mesh):
    x = ts.distribute_tensor(torch.randn(6, 2), mesh, [Shard(0)])
    x.requires_grad_()
    x.full_tensor().square().sum().backward()
    torch.testing.assert_close(
        x.grad.full_tensor(), 2 * x.detach().full_tensor()
    )


@pytest.mark.parametrize("name", ["empty", "zeros", "ones", "rand", "randn"])
def test_factories(mesh, name):
    make = getattr(ts, name)
    x = make(6, 3, device_mesh=mesh, placements=[Shard(0)], dtype=torch.float64)
    assert isinstance(x, DTensor)
    assert x.shape == (6, 3) and x.dtype is torch.float64
    assert [s.shape[0] for s in x.shards()] == [2, 2, 2, 0]
    y = make((6, 3), device_mesh=mesh, requires_grad=True)
    assert y.requires_grad and y.placements == (Replicate(),)
    if name in ("zeros", "ones"):
        assert torch.equal(y.full_tensor(), getattr(torch, name)(6, 3))
    with pytest.raises(NotImplementedError, match="strided"):
        make(2, device_mesh=mesh, layout=torch.sparse_coo)
    with pytest.raises(ValueError, match=name):
        make(2, device_mesh=mesh, placements=[Partial()])


def test_full_and_seed(mesh):
    x = ts.full((2, 3), 7, device_mesh=mesh, placements=[Shard(1)])
    assert torch.equal(x.full_tensor(), torch.full((2, 3), 7.0))
    draws = []
    for placement in (Shard(0), Shard(1), Replicate()):
        ts.manual_seed(3)
        r = ts.randn(5, 5, device_mesh=mesh, placements=[placement])
        draws.append(r.full_tensor())
    assert torch.equal(draws[0], draws[1]) and torch.equal(draws[0], draws[2])


def test_like_and_new(mesh):
    x = ts.distribute_tensor(torch.randn(8, 2), mesh, [Shard(0)])
    for like in (
        torch.zeros_like(x),
        torch.randn_like(x),
        x.new_ones(8, 2),
        torch.empty_like(x),
    ):
        assert isinstance(like, DTensor) and like.shape == x.shape


def test_implicit_replication(mesh):
    x = ts.distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    plain = torch.full((4, 2), 2.0)
    with pytest.raises(RuntimeError, match="plain"):
        x + plain
    for guard in (
        ts.implicit_replication,
        ts.experimental.implicit_replication,
    ):
        with guard():
            assert torch.equal((x + plain).full_tensor(), plain + 1)
    with pytest.raises(RuntimeError, match="plain"):
        x + plain


def test_errors_of_distribute_tensor(mesh):
    value = torch.randn(8, 4)
    with pytest.raises(ValueError, match="must have the same length"):
        ts.distribute_tensor(value, mesh, [Shard(0), Shard(1)])
    with pytest.raises(ValueError, match="must have the same length"):
        ts.distribute_tensor(value, mesh, [])
    with pytest.raises(RuntimeError, match="distribute leaf tensor"):
        ts.distribute_tensor(value.requires_grad_() * 2, mesh, [Shard(0)])
    x = ts.distribute_tensor(value.detach(), mesh, [Shard(0)])
    with pytest.raises(ValueError, match="to a different device mesh"):
        other = ts.init_device_mesh("cpu", (2,))
        ts.distribute_tensor(x, other, [Shard(0)])
    with pytest.raises(ValueError, match="to a different placements"):
        ts.distribute_tensor(x, mesh, [Shard(1)])
    # What was given, and what was expected.
    with pytest.raises(ValueError, match=r"S\(2\).*2"):
        ts.distribute_tensor(value.detach(), mesh, [Shard(2)])
    with pytest.raises(ValueError, match=r"P\(sum\).*from_local"):
        ts.distribute_tensor(value.detach(), mesh, [Partial()])
    with pytest.raises(NotImplementedError, match="src_data_rank"):
        ts.distribute_tensor(value.detach(), mesh, src_data_rank=2)
    with pytest.raises(TypeError, match="expected a DeviceMesh"):
        ts.distribute_tensor(value.detach(), "cpu", [Shard(0)])


def test_parameter_gives_parameter(mesh):
    weight = nn.Parameter(torch.randn(8, 4))
    distributed = ts.distribute_tensor(weight, mesh, [Shard(0)])
    assert isinstance(distributed, nn.Parameter)
    assert isinstance(distributed, DTensor)
    assert distributed.requires_grad and distributed.is_leaf
    frozen = nn.Parameter(torch.randn(4), requires_grad=False)
    assert not ts.distribute_tensor(frozen, mesh).requires_grad
