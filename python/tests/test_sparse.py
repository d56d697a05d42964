"""Sparse gradients of distributed tables, and the optimizers made for them."""

import pytest
import torch
import torch.nn.functional as F
from both_worlds import in_both_worlds
from processes import RANKS

import tessera as ts
from tessera import Replicate, Shard

LAYOUTS = [Shard(0), Shard(1), Replicate()]
OPTIMIZERS = [
    lambda p: torch.optim.Adagrad(p, lr=0.5),
    lambda p: torch.optim.Adagrad(p, lr=0.5, lr_decay=0.1, maximize=True),
    lambda p: torch.optim.SparseAdam(p, lr=0.1),
    lambda p: torch.optim.SparseAdam(p, lr=0.1, maximize=True),
    lambda p: torch.optim.SGD(p, lr=0.5),
]


def make_mesh():
    return ts.init_device_mesh("cpu", (RANKS,))


def tables(mesh, layout, rows=9):
    """One of one device and the same, distributed."""
    value = torch.randn(rows, 6, dtype=torch.float64)
    return (
        torch.nn.Parameter(value.clone()),
        torch.nn.Parameter(ts.distribute_tensor(value, mesh, [layout])),
    )


def body_optimizers(here):
    mesh = make_mesh()
    for layout in LAYOUTS:
        for batch in (Replicate(), Shard(0)):
            for make in OPTIMIZERS:
                plain, table = tables(mesh, layout)
                optimizers = [make([plain]), make([table])]
                for _ in range(3):
                    # Ranks without entries are among them.
                    ids = torch.randint(0, 5, (4, 2))
                    F.embedding(ids, plain, sparse=True).square().sum().backward()
                    spread = ts.distribute_tensor(ids, mesh, [batch])
                    rows = F.embedding(spread, table, sparse=True)
                    rows.square().sum().backward()
                    assert table.grad.is_sparse
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
                assert table.placements == (layout,)
                torch.testing.assert_close(table.full_tensor(), plain.detach())


def body_gradients_add_up(here):
    mesh = make_mesh()
    for layout in LAYOUTS:
        plain, table = tables(mesh, layout)
        for ids in (torch.tensor([0, 8, 8]), torch.tensor([3])):
            F.embedding(ids, plain, sparse=True).square().sum().backward()
            spread = ts.distribute_tensor(ids, mesh, [Replicate()])
            F.embedding(spread, table, sparse=True).square().sum().backward()
        assert table.grad.is_sparse and table.grad.placements == (layout,)
        dense = plain.grad.to_dense()
        torch.testing.assert_close(table.grad.full_tensor(), dense)
        torch.testing.assert_close(
            table.grad.coalesce().to_dense().full_tensor(), dense
        )


def body_bags(here):
    mesh = make_mesh()
    for layout in LAYOUTS:
        plain, table = tables(mesh, layout)
        optimizers = [torch.optim.Adagrad([t], lr=0.5) for t in (plain, table)]
        ids = torch.randint(0, 9, (4, 3))
        for weight, batch in (
            (plain, ids),
            (table, ts.distribute_tensor(ids, mesh, [Replicate()])),
        ):
            bags = F.embedding_bag(batch, weight, mode="sum", sparse=True)
            bags.square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        torch.testing.assert_close(table.full_tensor(), plain.detach())


def body_no_communication(here):
    mesh = make_mesh()
    for make in OPTIMIZERS:
        for layout in LAYOUTS:
            _, table = tables(mesh, layout)
            optimizer = make([table])
            ids = ts.distribute_tensor(torch.tensor([0, 8]), mesh)
            F.embedding(ids, table, sparse=True).sum().backward()
            with ts.debug.CommDebugMode() as comm:
                optimizer.step()
            assert comm.get_total_counts() == 0


test_simulated, test_processes = in_both_worlds(
    body_optimizers,
    body_gradients_add_up,
    body_bags,
    body_no_communication,
)


def test_answers(mesh):
    plain, table = tables(mesh, Shard(0))
    ids = torch.tensor([8, 0, 8, 3])
    F.embedding(ids, plain, sparse=True).square().sum().backward()
    spread = ts.distribute_tensor(ids, mesh)
    F.embedding(spread, table, sparse=True).square().sum().backward()
    grad, expected = table.grad, plain.grad.coalesce()
    assert grad.is_sparse and grad.layout is torch.sparse_coo
    assert (grad.sparse_dim(), grad.dense_dim()) == (1, 1)
    coalesced = grad.coalesce()
    assert coalesced.is_coalesced() and coalesced.placements == (Shard(0),)
    assert coalesced._nnz() == 3
    for name in ("_indices", "_values", "indices", "values"):
        found = getattr(coalesced, name)().full_tensor()
        torch.testing.assert_close(found, getattr(expected, name)())
    masked = table.detach().sparse_mask(coalesced)
    torch.testing.assert_close(
        masked._values().full_tensor(),
        plain.detach().sparse_mask(expected)._values(),
    )
    assert "DTensor" in repr(grad)


def test_refusals(mesh):
    _, table = tables(mesh, Shard(0))
    ids = ts.distribute_tensor(torch.tensor([8, 0]), mesh)
    F.embedding(ids, table, sparse=True).sum().backward()
    grad = table.grad.coalesce()
    # Shards' entries are joined: a write would not reach them.
    with pytest.raises(RuntimeError, match="copied into another layout"):
        grad._values().clamp_(0, 1)
    with pytest.raises(RuntimeError, match="both distributed or both plain"):
        torch.sparse_coo_tensor(
            grad._indices().full_tensor(), grad._values(), (9, 6)
        )
    with pytest.raises(RuntimeError, match="both distributed"):
        torch.randn(9, 6, dtype=torch.float64).sparse_mask(grad)
    with pytest.raises(NotImplementedError, match="new_empty"):
        table.new(3)
