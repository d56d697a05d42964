"""Helpers of torch's that make tensors of their own, on distributed parameters."""

import copy

import pytest
import torch
from both_worlds import in_both_worlds
from processes import RANKS, run
from torch import nn
from torch.nn.utils import parametrizations

import tessera as ts
from tessera import Partial, Replicate, Shard


def make_mesh():
    return ts.init_device_mesh("cpu", (RANKS,))


def layouts_of(model, mesh):
    """The model with its weights in each layout."""
    for placement in (Replicate(), Shard(0), Shard(1)):
        copied = copy.deepcopy(model)
        ts.distribute_(copied.weight, mesh, [placement])
        yield ts.distribute_module(copied, mesh)


def body_grad_scaler(here):
    mesh = make_mesh()
    x = torch.randn(8, 4)
    for bad in (0.0, float("inf"), float("nan")):
        plain = nn.Linear(4, 3)
        for model in layouts_of(plain, mesh):
            expected = copy.deepcopy(plain)
            results = []
            for m, batch in (
                (expected, x),
                (model, ts.distribute_tensor(x, mesh, [Shard(0)])),
            ):
                optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
                for step in range(3):
                    optimizer.zero_grad()
                    loss = m(batch).square().mean()
                    scaler.scale(loss).backward()
                    if step == 1 and bad != 0:
                        # One entry, which lives on one rank.
                        with torch.no_grad():
                            spoiled = torch.zeros(3, 4)
                            spoiled[0, 0] = bad
                            grad = m.weight.grad
                            if isinstance(grad, ts.DTensor):
                                spoiled = ts.distribute_tensor(
                                    spoiled, mesh, grad.placements
                                )
                            grad.add_(spoiled)
                    scaler.step(optimizer)
                    scaler.update()
                results.append((m, scaler.get_scale()))
            (_, scale), (_, spread_scale) = results
            assert scale == spread_scale
            torch.testing.assert_close(
                model.weight.full_tensor().detach(), expected.weight.detach()
            )


def body_pending_gradients_are_looked_at_as_a_sum(here):
    """Terms that are finite may have a sum that is not."""
    mesh = make_mesh()
    terms = ts.DTensor.from_local(
        torch.full((2,), 1e38), mesh, [Partial()]
    )
    found = torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_(
        [terms], found, torch.tensor(0.5)
    )
    assert found.item() == 1
    terms = ts.DTensor.from_local(torch.ones(2), mesh, [Partial()])
    found = torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_(
        [terms], found, torch.tensor(0.5)
    )
    assert found.item() == 0
    assert torch.equal(terms.full_tensor(), torch.full((2,), RANKS / 2))


def body_weight_norm(here):
    mesh = make_mesh()
    x = torch.randn(8, 4)
    for dim in (0, 1, None):
        plain = nn.Linear(4, 3)
        for model in layouts_of(plain, mesh):
            expected = parametrizations.weight_norm(
                copy.deepcopy(plain), dim=dim
            )
            parametrizations.weight_norm(model, dim=dim)
            batch = ts.distribute_tensor(x, mesh, [Shard(0)])
            expected(x).square().sum().backward()
            model(batch).square().sum().backward()
            for name, parameter in expected.named_parameters():
                spread = dict(model.named_parameters())[name]
                torch.testing.assert_close(
                    spread.full_tensor(), parameter, check_device=False
                )
                torch.testing.assert_close(
                    spread.grad.full_tensor(), parameter.grad
                )


def body_orthogonal(here):
    mesh = make_mesh()
    # Square, wide and high weights.
    for out_features, in_features in ((4, 4), (3, 5), (6, 4)):
        x = torch.randn(8, in_features)
        for name in ("matrix_exp", "cayley", "householder"):
            for use_trivialization in (True, False):
                plain = nn.Linear(in_features, out_features)
                for model in layouts_of(plain, mesh):
                    expected = copy.deepcopy(plain)
                    for m in (expected, model):
                        torch.manual_seed(1)
                        parametrizations.orthogonal(
                            m,
                            orthogonal_map=name,
                            use_trivialization=use_trivialization,
                        )
                    check_alike(model, expected, x, mesh)


def check_alike(model, expected, x, mesh):
    """The same losses and parameters over a few steps."""
    batch = ts.distribute_tensor(x, mesh, [Shard(0)])
    optimizers = [
        torch.optim.SGD(m.parameters(), lr=0.1) for m in (expected, model)
    ]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected(x).square().mean().backward()
        model(batch).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    spread = dict(model.named_parameters())
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(
            spread[name].full_tensor(), parameter, rtol=1e-4, atol=1e-5
        )
    torch.testing.assert_close(
        model.weight.full_tensor(), expected.weight, rtol=1e-4, atol=1e-5
    )


test_simulated, test_processes = in_both_worlds(
    body_grad_scaler,
    body_pending_gradients_are_looked_at_as_a_sum,
    body_weight_norm,
    body_orthogonal,
)


def data_parallel_is_refused(rank):
    mesh = make_mesh()
    model = ts.distribute_module(nn.Linear(4, 3), mesh)
    with pytest.raises(
        NotImplementedError, match=r"\[DistributedDataParallel\].*'weight'"
    ) as error:
        nn.parallel.DistributedDataParallel(model)
    assert "distribute_module" in str(error.value)
    # Plain ones go on.
    plain = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    plain(torch.randn(2, 4)).sum().backward()


def test_data_parallel():
    run(data_parallel_is_refused)


def test_lists_and_arrays(mesh):
    value = torch.arange(6.0).view(3, 2)
    x = ts.distribute_tensor(value, mesh, [Shard(0)])
    assert x.tolist() == value.tolist()
    assert x.sum().tolist() == value.sum().tolist()
    for call in (x.numpy, x.__array__, lambda: __import__("numpy").asarray(x)):
        with pytest.raises(RuntimeError, match=r"full_tensor\(\)"):
            call()
    assert value.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert value.numpy().shape == (3, 2)
