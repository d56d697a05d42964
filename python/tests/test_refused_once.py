"""What works on one device and was refused, in words that did not say why."""

import copy

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from both_worlds import in_both_worlds
from processes import RANKS
from torch import nn
from torch.functional import unravel_index
from torch.masked._ops import std, var

import tessera as ts
from tessera import Replicate, Shard

LAYOUTS = (Replicate(), Shard(0), Shard(1))


def make_mesh():
    return ts.init_device_mesh("cpu", (RANKS,))


def body_initialisation(here):
    mesh = make_mesh()
    for placement in LAYOUTS:
        weight = ts.distribute_tensor(torch.zeros(64, 32), mesh, [placement])
        nn.init.trunc_normal_(weight, std=2.0)
        whole = weight.full_tensor()
        assert whole.abs().max() <= 2 and whole.std() > 0.5
        assert weight.placements == (placement,)


def body_new_tensor(here):
    x = ts.distribute_tensor(torch.ones(8, 4), make_mesh(), [Shard(0)])
    made = x.new_tensor([[1, 2], [3, 4]])
    assert isinstance(made, ts.DTensor) and made.placements == (Replicate(),)
    expected = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(made.full_tensor(), expected)
    counted = x.new_tensor(3, dtype=torch.long)
    assert counted.dtype == torch.long and counted.item() == 3
    assert x.new_tensor([1.0], requires_grad=True).requires_grad
    copied = x.new_tensor(x, dtype=torch.double)
    assert copied.placements == x.placements and copied.dtype == torch.double
    torch.testing.assert_close(x[:1].new_tensor([2.0]).full_tensor().item(), 2.0)


def body_functions_that_others_hold(here):
    # As torch's own tests do, which import them before tessera.
    mesh = make_mesh()
    index = torch.arange(24).view(8, 3)
    value = torch.randn(8, 3)
    mask = value > -0.5
    for placement in LAYOUTS:
        ids, x, m = (
            ts.distribute_tensor(t, mesh, [placement])
            for t in (index, value, mask)
        )
        for result, expected in zip(
            unravel_index(ids, (4, 6)), unravel_index(index, (4, 6))
        ):
            assert torch.equal(result.full_tensor(), expected)
        for function in (var, std):
            for dim in (0, 1):
                torch.testing.assert_close(
                    function(x, dim, mask=m).full_tensor(),
                    function(value, dim, mask=mask),
                    equal_nan=True,  # of one element, or none
                )
                torch.testing.assert_close(
                    function(x, dim).full_tensor(), function(value, dim)
                )


def body_loss_in_chunks(here):
    if not hasattr(nn, "LinearCrossEntropyOptions"):
        return  # torch before 2.13
    mesh = make_mesh()
    x, weight = torch.randn(8, 4), torch.randn(10, 4)
    target = torch.randint(0, 10, (8,))
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    for reduction in ("mean", "sum", "none"):
        arguments = {"reduction": reduction, "options": options}
        plain = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        expected = F.linear_cross_entropy(*plain, target, **arguments)
        expected.sum().backward()
        for placement in LAYOUTS[:2]:
            given = [
                ts.distribute_tensor(x, mesh, [placement]).requires_grad_(),
                ts.distribute_tensor(weight, mesh).requires_grad_(),
            ]
            loss = F.linear_cross_entropy(
                *given,
                ts.distribute_tensor(target, mesh, [placement]),
                **arguments,
            )
            torch.testing.assert_close(loss.full_tensor(), expected)
            loss.sum().backward()
            for mine, theirs in zip(given, plain):
                torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad)


def body_scaler_with_sparse_gradients(here):
    mesh = make_mesh()
    ids = torch.tensor([1, 1, 3, 7])
    for bad in (0.0, float("inf")):
        plain = nn.Embedding(8, 4, sparse=True)
        for placement in LAYOUTS:
            expected = copy.deepcopy(plain)
            model = copy.deepcopy(plain)
            ts.distribute_(model.weight, mesh, [placement])
            for m, i in (
                (expected, ids),
                (model, ts.distribute_tensor(ids, mesh)),
            ):
                optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
                loss = m(i).sum() + bad * m(i)[0, 0]
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                assert scaler.get_scale() == (4.0 if bad == 0 else 2.0)
            torch.testing.assert_close(
                model.weight.full_tensor(), expected.weight
            )


def body_interpolation_of_nothing(here):
    mesh = make_mesh()
    for shape, arguments in (
        ((0, 3, 3), {"scale_factor": 2}),
        ((0, 2, 3, 3), {"size": (4, 5)}),
        ((0, 2, 3, 3), {"size": (4, 5), "mode": "nearest-exact"}),
        ((0, 2, 3, 3, 3), {"scale_factor": 2}),
    ):
        expected = F.interpolate(torch.zeros(shape), **arguments)
        for placement in LAYOUTS[:2]:
            x = ts.distribute_tensor(torch.zeros(shape), mesh, [placement])
            result = F.interpolate(x.requires_grad_(), **arguments)
            assert result.full_tensor().shape == expected.shape
            result.sum().backward()
            assert x.grad.shape == x.shape
    x = ts.distribute_tensor(torch.zeros(2, 0, 3, 3), mesh)
    with pytest.raises(RuntimeError, match="Non-empty 4D data tensor expected"):
        F.interpolate(x, scale_factor=2)


def body_forward_mode(here):
    mesh = make_mesh()
    value, change = torch.randn(8, 4), torch.randn(8, 4)

    def loss(x):
        return (x.tanh() ** 2).sum()

    def check(call):
        expected = call(loss, value, change)
        for placement in LAYOUTS:
            result = call(
                loss,
                ts.distribute_tensor(value, mesh, [placement]),
                ts.distribute_tensor(change, mesh, [placement]),
            )
            torch.testing.assert_close(result.full_tensor(), expected)

    check(lambda f, x, dx: torch.func.jvp(f, (x,), (dx,))[1])
    check(lambda f, x, dx: torch.func.linearize(f, x)[1](dx))
    check(lambda f, x, dx: torch.func.hessian(f)(x))
    check(lambda f, x, dx: torch.func.jacfwd(torch.sin)(x))
    check(
        lambda f, x, dx: torch.func.jvp(torch.func.grad(f), (x,), (dx,))[1]
    )

    def median_tangent(f, x, dx):
        # Its meta kernel is looked up by a printed meta tensor.
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, dx)
            return forward_ad.unpack_dual(dual.flatten().quantile(0.5)).tangent

    check(median_tangent)


test_simulated, test_processes = in_both_worlds(
    body_initialisation,
    body_new_tensor,
    body_functions_that_others_hold,
    body_loss_in_chunks,
    body_scaler_with_sparse_gradients,
    body_interpolation_of_nothing,
    body_forward_mode,
)


def test_vmap_says_whose_the_plain_tensor_may_be(mesh):
    value = torch.randn(4, 6, 3)
    x = ts.distribute_tensor(value, mesh, [Shard(0)])

    def normalised(t):
        return F.batch_norm(t, None, None, training=True)

    with pytest.raises(RuntimeError, match="torch itself made for the op"):
        torch.vmap(normalised)(x)
    with ts.implicit_replication():
        result = torch.vmap(normalised)(x)
    torch.testing.assert_close(
        result.full_tensor(), torch.vmap(normalised)(value)
    )
    with ts.implicit_replication():
        result = torch.vmap(lambda t: torch.slice_scatter(t, t[:2], 0, 1, 3))(x)
    torch.testing.assert_close(
        result.full_tensor(),
        torch.vmap(lambda t: torch.slice_scatter(t, t[:2], 0, 1, 3))(value),
    )


@pytest.mark.parametrize("names", [("tp", "dp"), ("pp",), "pp", ("dp", "dp")])
def test_names_of_a_mesh_that_do_not_fit(world, names):
    mesh = ts.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(KeyError, match="DeviceMesh"):
        mesh[names]
