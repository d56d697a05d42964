"""Indexing by tensors, and assert_close, whose report writes through a mask."""

import pytest
import torch
from both_worlds import in_both_worlds
from processes import RANKS

import tessera as ts
from tessera import DTensor, Replicate, Shard


def make_value():
    return torch.arange(24.0).view(6, 4) / 3


def in_layouts(value):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    for placement in (Shard(0), Shard(1), Replicate()):
        yield mesh, ts.distribute_tensor(value, mesh, [placement])


def body_assert_close_says_what_differs(here):
    value = make_value()
    other = value.clone()
    other[4, 1] += 2
    other[0, 3] += 1
    for mesh, x in in_layouts(value):
        y = ts.distribute_tensor(other, mesh, [Shard(0)])
        with pytest.raises(AssertionError) as expected:
            torch.testing.assert_close(value, other)
        with pytest.raises(AssertionError) as caught:
            torch.testing.assert_close(x, y)
        assert str(caught.value) == str(expected.value)
        assert "Mismatched elements: 2 / 24 (8.3%)" in str(caught.value)
        assert "at index (4, 1)" in str(caught.value)
        torch.testing.assert_close(x, y, rtol=0, atol=2.5)
    with pytest.raises(AssertionError, match="values for attribute 'shape'"):
        torch.testing.assert_close(x, x[:5])


def body_write_through_a_mask(here):
    for _, x in in_layouts(make_value()):
        expected = make_value()
        placements = x.placements
        for t in (x, expected):
            t[t > 5] = 0
            t[t[:, 1] < 2] = -1
            t[t == 0] += 3
        assert torch.equal(x.full_tensor(), expected)
        assert x.placements == placements


def body_one_number_is_written_without_messages(here):
    for mesh, x in in_layouts(make_value()):
        mask = ts.distribute_tensor(make_value() > 5, mesh, x.placements)
        with ts.debug.CommDebugMode() as comm:
            x[mask] = 0
        assert comm.get_total_counts() == 0


def body_write_rows(here):
    rows, values = torch.tensor([5, 0, 2]), torch.ones(3, 4) / 7
    for mesh, x in in_layouts(make_value()):
        where, what = (ts.distribute_tensor(t, mesh) for t in (rows, values))
        expected = make_value()
        x[where], expected[rows] = what, values
        x.index_put_((where,), what, accumulate=True)
        expected.index_put_((rows,), values, accumulate=True)
        assert torch.equal(x.full_tensor(), expected)


def body_read_with_gradients(here):
    rows = torch.tensor([[5, 0], [5, 2]])
    plain = make_value().requires_grad_()
    (plain[rows].square().sum() + plain[plain > 5].sum()).backward()
    for mesh, x in in_layouts(make_value()):
        x.requires_grad_()
        where = ts.distribute_tensor(rows, mesh)
        found, above = x[where], x[x > 5]
        assert isinstance(found, DTensor) and found.shape == (2, 2, 4)
        assert torch.equal(found.detach().full_tensor(), plain[rows].detach())
        assert torch.equal(
            above.detach().full_tensor(), plain[plain > 5].detach()
        )
        (found.square().sum() + above.sum()).backward()
        torch.testing.assert_close(x.grad.full_tensor(), plain.grad)


def body_refusals(here):
    for mesh, x in in_layouts(make_value()):
        with pytest.raises(RuntimeError, match="argument 'indices' is a plain"):
            x[torch.tensor([0, 1])]
        with pytest.raises(IndexError, match="expected a mask of the shape"):
            x[ts.ones(5, device_mesh=mesh) > 0] = 1
        with pytest.raises(IndexError, match="out of (range|bounds)"):
            x[ts.full(2, 6, dtype=torch.long, device_mesh=mesh)]


test_simulated, test_processes = in_both_worlds(
    body_assert_close_says_what_differs,
    body_write_through_a_mask,
    body_one_number_is_written_without_messages,
    body_write_rows,
    body_read_with_gradients,
    body_refusals,
)
