"""Rules for ops of one's own."""

import pytest
import torch

import tessera as ts
from tessera import Partial, Replicate, Shard
from tessera.debug import CommDebugMode


@torch.library.custom_op("rulestest::scale_rows", mutates_args=())
def scale_rows(x: torch.Tensor, s: torch.Tensor, times: int) -> torch.Tensor:
    return x * s[:, None] * times


@scale_rows.register_fake
def _(x, s, times):
    return torch.empty_like(x)


@torch.library.custom_op("rulestest::column_sums", mutates_args=())
def column_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


@pytest.fixture(scope="module", autouse=True)
def _rules():
    ts.register_rule(
        "rulestest::scale_rows",
        [
            ([Shard(0), Shard(0)], [Shard(0)]),
            ([Shard(1), Replicate()], Shard(1)),
        ],
    )
    ts.register_rule(
        "rulestest::column_sums",
        lambda shapes, arguments: [
            (Shard(0), Partial()),
            (Shard(1), Shard(0)),
        ],
        output_shapes=lambda shapes, arguments: [shapes[0][1:]],
    )


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_rows(mesh, placement):
    x, s = torch.randn(6, 5), torch.randn(6)
    spread = ts.distribute_tensor(x, mesh, [placement])
    other = placement if placement == Shard(0) else Replicate()
    with CommDebugMode() as comm:
        y = scale_rows(spread, ts.distribute_tensor(s, mesh, [other]), 3)
        if placement == Shard(0):
            assert comm.get_comm_counts() == {torch.ops.c10d.scatter_: 1}
    assert y.placements == (placement,)
    torch.testing.assert_close(y.full_tensor(), scale_rows(x, s, 3))


def test_functions(mesh):
    x = torch.randn(6, 5)
    for placement, result in (
        (Shard(0), Partial()),
        (Shard(1), Shard(0)),
        (Replicate(), Replicate()),
    ):
        y = column_sums(ts.distribute_tensor(x, mesh, [placement]))
        assert y.placements == (result,)
        torch.testing.assert_close(y.full_tensor(), column_sums(x))


def test_refusals(mesh):
    with pytest.raises(ValueError, match="has a rule already"):
        ts.register_rule("rulestest::scale_rows", [])
    with pytest.raises(ValueError, match="namespace::name"):
        ts.register_rule("scale_rows", [])
    for rows in (3, [Shard(0)], [(Shard(0),)], [(None, Shard(0))]):
        with pytest.raises(TypeError, match=r"\[register_rule\] expected"):
            ts.register_rule("rulestest::other", rows)


def test_the_error_names_it(mesh):
    x = ts.distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)])
    with (
        ts.strict(),
        pytest.raises(NotImplementedError, match=r"tessera.register_rule\(") as e,
    ):
        torch.unique_consecutive(x)
    assert "::register_rule" not in str(e.value)


def test_other_errors_speak_python(mesh):
    x = ts.distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)])
    with pytest.raises(RuntimeError, match=r"DTensor.from_local") as e:
        x + torch.randn(4, 4)
    assert "with tessera.implicit_replication():" in str(e.value)
    assert "::" not in str(e.value) and "guard" not in str(e.value)
    with pytest.raises(ValueError, match="pass uneven=True, or shape") as e:
        ts.DTensor.from_local(
            [torch.ones(2), torch.ones(1), torch.ones(2), torch.ones(2)],
            mesh,
            [Shard(0)],
        )
    assert "options" not in str(e.value)
