"""Ops without a sharding rule run on gathered inputs, or raise where asked to."""

import os

import pytest
import torch
from both_worlds import in_both_worlds
from processes import RANKS
from programs import run_program

import tessera as ts
from tessera import Partial, Replicate, Shard

REFUSAL = (
    "aten.unique_consecutive.default does not have a sharding strategy registered"
)


def matrix():
    return torch.arange(30.0, dtype=torch.float64).view(6, 5).sin()


def in_layouts(value):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    for placement in (Replicate(), Shard(0), Shard(1)):
        yield ts.distribute_tensor(value, mesh, [placement])
    twice = ts.distribute_tensor(value / RANKS, mesh, [Replicate()])
    yield ts.DTensor.from_local(twice.shards(), mesh, [Partial()])


def body_values_and_gradients(here):
    plain = matrix().requires_grad_()
    q, r = torch.linalg.qr(plain)
    (q.sin().sum() + r.sum()).backward()
    for x in in_layouts(matrix()):
        x.requires_grad_()
        dq, dr = torch.linalg.qr(x)
        assert dq.placements == (Replicate(),)
        torch.testing.assert_close(dq.full_tensor(), q)
        torch.testing.assert_close(dr.full_tensor(), r)
        (dq.sin().sum() + dr.sum()).backward()
        torch.testing.assert_close(x.grad.full_tensor(), plain.grad)


def body_random_numbers_agree(here):
    for x in in_layouts(matrix().abs()):
        drawn = torch.poisson(x)
        total = ts.DTensor.from_local(
            drawn.shards(), drawn.device_mesh, [Partial()]
        )
        assert torch.equal(total.full_tensor(), drawn.full_tensor() * RANKS)


def body_sizes_that_depend_on_values(here):
    for x in in_layouts(matrix()):
        values, counts = torch.unique((x * 4).round(), return_counts=True)
        plain = torch.unique((matrix() * 4).round(), return_counts=True)
        assert torch.equal(values.full_tensor(), plain[0])
        assert torch.equal(counts.full_tensor(), plain[1])


def body_strict(here):
    for x in in_layouts(matrix()):
        with ts.strict(), pytest.raises(NotImplementedError, match=REFUSAL):
            torch.unique_consecutive(x)
        torch.unique_consecutive(x)



def test_one_warning_an_op(tmp_path):
    # In a process of its own: another test may have met the op before.
    program = tmp_path / "program.py"
    program.write_text(
        "import warnings, torch, tessera as ts\n"
        "warnings.simplefilter('always')\n"
        "with ts.simulate(2):\n"
        "    mesh = ts.init_device_mesh('cpu', (2,))\n"
        "    x = ts.distribute_tensor(torch.eye(6), mesh, [ts.Shard(0)])\n"
        "    for _ in range(2):\n"
        "        torch.pdist(x)\n"
    )
    result = run_program(program, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("inputs were gathered") == 1
    assert "aten._pdist_forward.default" in result.stderr
    assert "bytes" in result.stderr and "register_rule" in result.stderr


@pytest.mark.parametrize("value, refused", [("1", True), ("0", False)])
def test_strict_by_the_environment(tmp_path, value, refused):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, tessera as ts\n"
        "with ts.simulate(2):\n"
        "    mesh = ts.init_device_mesh('cpu', (2,))\n"
        "    torch.unique_consecutive(ts.distribute_tensor(torch.eye(4), mesh))\n"
    )
    result = run_program(
        program, env={**os.environ, "TESSERA_STRICT": value}, timeout=120
    )
    assert (result.returncode != 0) == refused
    assert (REFUSAL in result.stderr) == refused


def test_what_torch_makes_itself_is_replicated(mesh):
    value = torch.randn(6, 4, dtype=torch.float64)
    for placement in (Shard(0), Shard(1), Replicate()):
        x = ts.distribute_tensor(value, mesh, [placement])
        labels = ts.distribute_tensor(torch.arange(6) % 3, mesh, [Shard(0)])
        for actual, expected in (
            (torch.masked.var(x), torch.masked.var(value)),
            (
                torch.nn.functional.one_hot(labels, 3),
                torch.nn.functional.one_hot(torch.arange(6) % 3, 3),
            ),
            (torch.quantile(x, 0.3, dim=0), torch.quantile(value, 0.3, dim=0)),
            (
                torch.linalg.matrix_power(x[:4], 3),
                torch.linalg.matrix_power(value[:4], 3),
            ),
        ):
            torch.testing.assert_close(actual.full_tensor(), expected)
        # What the caller makes is not.
        with pytest.raises(RuntimeError, match="'q' is a plain tensor"):
            torch.quantile(x, torch.tensor([0.3, 0.4], dtype=torch.float64))


def test_recurrent_modules(mesh):
    torch.manual_seed(0)
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        module = kind(4, 3, num_layers=2, batch_first=True).double()
        value = torch.randn(6, 5, 4, dtype=torch.float64)
        expected = module(value)[0]
        expected.sin().sum().backward()
        grads = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        ts.distribute_module(module, mesh)
        for placement in (Shard(0), Replicate()):
            module.zero_grad()
            actual = module(ts.distribute_tensor(value, mesh, [placement]))[0]
            torch.testing.assert_close(actual.full_tensor(), expected)
            actual.sin().sum().backward()
            for parameter, grad in zip(module.parameters(), grads):
                torch.testing.assert_close(parameter.grad.full_tensor(), grad)


class _Quarters(torch.autograd.Function):
    """A formula that writes the gradient into views of a tensor it makes."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        made = torch.zeros(8, 4, dtype=grad.dtype)
        before = made.narrow(0, 0, 4)
        below = made.narrow(0, 4, 4)
        with ts.implicit_replication():
            made.narrow(0, 0, 4).add_(grad)
            below.narrow(1, 0, 2).add_(grad.narrow(1, 0, 2))
            made.narrow(0, 0, 4).mul_(2)
            return made.narrow(0, 0, 4) + made.narrow(0, 4, 4) + before


def body_views_of_a_plain_tensor_in_a_formula(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    value = torch.arange(16.0).view(4, 4)
    plain = value.clone().requires_grad_()
    (_Quarters.apply(plain) * value).sum().backward()
    for placement in (Shard(0), Shard(1), Replicate()):
        x = ts.distribute_tensor(value, mesh, [placement]).requires_grad_()
        factor = ts.distribute_tensor(value, mesh, [Shard(1)])
        (_Quarters.apply(x) * factor).sum().backward()
        assert torch.equal(x.grad.full_tensor(), plain.grad)


test_simulated, test_processes = in_both_worlds(
    body_values_and_gradients,
    body_random_numbers_agree,
    body_sizes_that_depend_on_values,
    body_strict,
    body_views_of_a_plain_tensor_in_a_formula,
)
