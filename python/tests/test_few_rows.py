"""A few rows of a sharded table, by lists of numbers too."""

import pytest
import torch

import tessera as ts
from tessera import Replicate, Shard


@pytest.fixture(params=[[Shard(0)], [Replicate()], [Shard(1)]], ids=str)
def tables(request):
    with ts.simulate(4):
        mesh = ts.init_device_mesh("cpu", (4,))
        plain = torch.arange(13 * 6.0).view(13, 6)
        yield plain, ts.distribute_tensor(plain, mesh, request.param)


@pytest.mark.parametrize("index", [
    7, -1, slice(2, 5), slice(1, 9, 3), [0, 1], [-1, 12, 3],
    [[0, 1], [2, 3]], (slice(None), [0, 1]), ([1, 2], [3, 4]), (3, 4),
    [True] * 5 + [False] * 8, (Ellipsis, 2), None,
], ids=str)
def test_indexing_equals_one_device(tables, index):
    plain, table = tables
    assert torch.equal(table[index].full_tensor(), plain[index])


@pytest.mark.parametrize("index", [[0, 1], [-1], ([1, 2], [3, 4])], ids=str)
def test_lists_write_too(tables, index):
    plain, table = tables
    expected = plain.clone()
    expected[index] = 5.0
    table[index] = 5.0
    assert torch.equal(table.full_tensor(), expected)


def test_gradients_of_a_list(tables):
    plain, table = tables
    weight = plain.clone().requires_grad_()
    weight[[3, 3, 11]].pow(2).sum().backward()
    table.requires_grad_()
    table[[3, 3, 11]].pow(2).sum().backward()
    assert torch.equal(table.grad.full_tensor(), weight.grad)
    assert table.grad.placements == table.placements


def test_a_tensor_that_the_user_made_is_still_refused(tables):
    _, table = tables
    with pytest.raises(RuntimeError, match="plain tensor"):
        table[torch.tensor([0, 1])]
    with ts.implicit_replication():
        assert table[torch.tensor([0, 1])].shape == (2, 6)


def test_a_row_costs_a_row():
    with ts.simulate(4):
        mesh = ts.init_device_mesh("cpu", (4,))
        table = ts.distribute_tensor(torch.randn(1000, 16), mesh, [Shard(0)])
        for index in 777, slice(3, 5), [5, 990]:
            with ts.debug.CommDebugMode() as comm:
                table[index].full_tensor()
            rows = 1 if isinstance(index, int) else 2
            # Each rank hands it over once; half as much again if it gathers.
            assert comm.get_total_bytes() <= 4 * 2 * rows * 16 * 4
