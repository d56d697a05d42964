"""torch.nn.Embedding and EmbeddingBag as they are, in both worlds."""

import copy
import itertools

import pytest
import torch
from both_worlds import in_both_worlds
from processes import RANKS
from torch import nn

import tessera as ts
from tessera import Replicate, Shard
from tessera.debug import CommDebugMode

ROWS, COLUMNS = 10, 6
LAYOUTS = (Shard(0), Shard(1), Replicate())


def mesh_here():
    return ts.init_device_mesh("cpu", (RANKS,))


def shard_weight(placement):
    def partition(name, module, mesh):
        module.register_parameter(
            "weight",
            nn.Parameter(
                ts.distribute_tensor(module.weight, mesh, [placement])
            ),
        )

    return partition


def distributed(module, mesh, placement):
    return ts.distribute_module(
        copy.deepcopy(module), mesh, shard_weight(placement)
    )


def same_training(module, mesh, placement, calls, batch=Replicate()):
    """The weight after a step for each of `calls` equals one device's."""
    ours = distributed(module, mesh, placement)
    optimizers = [
        torch.optim.Adagrad(each.parameters(), lr=0.3)
        for each in (module, ours)
    ]
    for ids, *rest in calls:
        for optimizer in optimizers:
            optimizer.zero_grad()
        module(ids, *rest).square().sum().backward()
        out = ours(
            ts.distribute_tensor(ids, mesh, [batch]),
            *(ts.distribute_tensor(t, mesh) for t in rest),
        )
        assert isinstance(out, ts.DTensor)
        out.square().sum().backward()
        assert ours.weight.grad.placements == (placement,)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(
        ours.weight.detach().full_tensor(), module.weight.detach()
    )


def body_bags_train(here):
    mesh = mesh_here()
    offsets = torch.tensor([0, 3, 3, 7])
    for mode, placement, padding_idx in itertools.product(
        ("sum", "mean", "max"), LAYOUTS, (None, 2)
    ):
        bag = nn.EmbeddingBag(
            ROWS, COLUMNS, mode=mode, padding_idx=padding_idx
        )
        two_dims = [(torch.randint(0, ROWS, (8, 3)),) for _ in range(3)]
        same_training(copy.deepcopy(bag), mesh, placement, two_dims)
        same_training(copy.deepcopy(bag), mesh, placement, two_dims, Shard(0))
        with_offsets = [
            (torch.randint(0, ROWS, (9,)), offsets) for _ in range(3)
        ]
        same_training(bag, mesh, placement, with_offsets)


def body_bag_forward(here):
    mesh = mesh_here()
    ids, per_sample_weights = torch.randint(0, ROWS, (5, 3)), torch.randn(5, 3)
    for placement in LAYOUTS:
        bag = nn.EmbeddingBag(ROWS, COLUMNS, mode="sum")
        ours = distributed(bag, mesh, placement)
        out = ours(
            ts.distribute_tensor(ids, mesh),
            per_sample_weights=ts.distribute_tensor(per_sample_weights, mesh),
        )
        torch.testing.assert_close(
            out.full_tensor(), bag(ids, per_sample_weights=per_sample_weights)
        )
        last = nn.EmbeddingBag(ROWS, COLUMNS, include_last_offset=True)
        ours = distributed(last, mesh, placement)
        offsets = torch.tensor([0, 2, 2, 15])
        out = ours(
            ts.distribute_tensor(ids.view(-1), mesh),
            ts.distribute_tensor(offsets, mesh),
        )
        torch.testing.assert_close(
            out.full_tensor(), last(ids.view(-1), offsets)
        )


def body_tables_train(here):
    mesh = mesh_here()
    for placement, padding_idx, batch in itertools.product(
        LAYOUTS, (None, 0, -1), (Replicate(), Shard(0))
    ):
        table = nn.Embedding(ROWS, COLUMNS, padding_idx=padding_idx)
        calls = [(torch.randint(0, ROWS, (8, 2)),) for _ in range(3)]
        same_training(table, mesh, placement, calls, batch)
        if padding_idx is not None:
            assert not table.weight.grad[padding_idx].any()


def body_communication(here):
    """Replicated indices: none at all; the whole value: one all_reduce."""
    mesh = mesh_here()
    ids = ts.distribute_tensor(torch.randint(0, ROWS, (4, 3)), mesh)
    for placement in (Shard(0), Shard(1)):
        table = distributed(nn.Embedding(ROWS, COLUMNS), mesh, placement)
        with CommDebugMode() as comm:
            rows = table(ids)
            rows.sum().backward()
        assert comm.get_total_counts() == 0
    with CommDebugMode() as comm:
        distributed(nn.Embedding(ROWS, COLUMNS), mesh, Shard(0))(
            ids
        ).full_tensor()
    assert comm.get_comm_counts()[torch.ops.c10d_functional.all_reduce] == 1


def body_max_norm(here):
    mesh = mesh_here()
    ids = torch.tensor([[1, 9, 1], [4, 4, 0]])
    text = (
        "aten.embedding_renorm_.default does not have a sharding strategy "
        "registered."
    )
    for placement, norm_type in itertools.product(LAYOUTS, (1.0, 2.0)):
        table = nn.Embedding(
            ROWS, COLUMNS, max_norm=1.5, norm_type=norm_type
        )
        ours = distributed(table, mesh, placement)
        placed = ts.distribute_tensor(ids, mesh)
        with pytest.raises(NotImplementedError, match=text):
            ours(placed)
        with ts.EmbeddingScope(max_norm=True):
            out = ours(placed)
        torch.testing.assert_close(out.full_tensor(), table(ids))
        torch.testing.assert_close(
            ours.weight.detach().full_tensor(), table.weight.detach()
        )
        with pytest.raises(NotImplementedError, match=text):
            ours(placed)


def body_ways(here):
    mesh = mesh_here()
    table = nn.Embedding(ROWS, COLUMNS)
    ours = distributed(table, mesh, Shard(0))
    ids = torch.randint(0, ROWS, (8, 3))
    placed = ts.distribute_tensor(ids, mesh, [Shard(0)])
    sent = {}
    for strategy in ("cheapest", "gather", "exchange"):
        with ts.EmbeddingScope(strategy=strategy), CommDebugMode() as comm:
            out = ours(placed)
        torch.testing.assert_close(out.full_tensor(), table(ids))
        assert out.placements == (Shard(0),)
        sent[strategy] = comm.get_comm_counts()
    assert sent["gather"] != sent["exchange"]
    with pytest.raises(ValueError, match="strategy 'cheapest'"):
        ts.EmbeddingScope(strategy="fastest")


def body_bag_strategies(here):
    mesh = mesh_here()
    bag = nn.EmbeddingBag(ROWS, COLUMNS, mode="sum")
    ids = torch.randint(0, ROWS, (8, 3))
    bag(ids).square().sum().backward()
    placed = ts.distribute_tensor(ids, mesh, [Shard(0)])
    sent = {}
    for strategy in (
        {"strategy": "gather"},
        {"strategy": "exchange", "bag_strategy": "pooled"},
        {"strategy": "exchange", "bag_strategy": "rows"},
    ):
        ours = distributed(bag, mesh, Shard(0))
        with ts.EmbeddingScope(**strategy), CommDebugMode() as comm:
            out = ours(placed)
        assert out.placements == (Shard(0),)
        torch.testing.assert_close(out.full_tensor(), bag(ids))
        out.square().sum().backward()
        torch.testing.assert_close(
            ours.weight.grad.full_tensor(), bag.weight.grad
        )
        sent[str(strategy)] = comm.get_comm_counts()
    gathered, pooled, rows = sent.values()
    assert gathered != pooled
    assert pooled == rows
    with pytest.raises(ValueError, match="bag_strategy 'cheapest'"):
        ts.EmbeddingScope(bag_strategy="fastest")


def body_index_errors(here):
    """On every rank, though only one has the index; nothing is left hanging."""
    mesh = mesh_here()
    for placement, batch in itertools.product(
        LAYOUTS, (Replicate(), Shard(0))
    ):
        table = distributed(nn.Embedding(ROWS, COLUMNS), mesh, placement)
        for index in (ROWS, -1, 2**40):
            ids = torch.zeros(8, dtype=torch.long)
            ids[5] = index
            with pytest.raises(
                IndexError, match=rf"\[embedding\].*index {index} .*10 rows"
            ):
                table(ts.distribute_tensor(ids, mesh, [batch]))
        good = table(ts.distribute_tensor(torch.arange(8), mesh, [batch]))
        assert good.shape == (8, COLUMNS)


def body_bag_index_errors(here):
    mesh = mesh_here()
    for placement, mode in itertools.product(LAYOUTS, ("sum", "mean", "max")):
        bag = distributed(
            nn.EmbeddingBag(ROWS, COLUMNS, mode=mode), mesh, placement
        )
        for index in (ROWS, -1):
            ids = torch.zeros(4, 2, dtype=torch.long)
            ids[2, 1] = index
            with pytest.raises(IndexError, match=f"index {index} .*10 rows"):
                bag(ts.distribute_tensor(ids, mesh))
        good = bag(ts.distribute_tensor(torch.arange(8).view(4, 2), mesh))
        assert good.shape == (4, COLUMNS)


def body_frequency_and_sparse(here):
    mesh = mesh_here()
    ids = torch.tensor([1, 1, 9, 0])
    for placement in LAYOUTS:
        for options in ({"scale_grad_by_freq": True}, {"sparse": True}):
            table = nn.Embedding(ROWS, COLUMNS, **options)
            ours = distributed(table, mesh, placement)
            table(ids).square().sum().backward()
            ours(ts.distribute_tensor(ids, mesh)).square().sum().backward()
            expected = table.weight.grad
            torch.testing.assert_close(
                ours.weight.grad.full_tensor(),
                expected.to_dense() if expected.is_sparse else expected,
            )
        bag = distributed(
            nn.EmbeddingBag(ROWS, COLUMNS, scale_grad_by_freq=True),
            mesh,
            placement,
        )
        with pytest.raises(NotImplementedError, match="scale_grad_by_freq"):
            bag(ts.distribute_tensor(ids.view(2, 2), mesh))


test_simulated, test_processes = in_both_worlds(
    body_bags_train,
    body_bag_forward,
    body_tables_train,
    body_communication,
    body_max_norm,
    body_ways,
    body_bag_strategies,
    body_index_errors,
    body_bag_index_errors,
    body_frequency_and_sparse,
)


def test_huge_pages():
    assert not ts.embedding.prefer_huge_pages(torch.ones(1000))
    table = torch.empty(1 << 21)
    ts.embedding.prefer_huge_pages(table)  # the system may refuse
    assert table.fill_(2).sum() == 2 << 21
    with ts.simulate(2):
        mesh = ts.init_device_mesh("cpu", (2,))
        placed = ts.distribute_tensor(table, mesh, [Shard(0)])
        assert not ts.embedding.prefer_huge_pages(placed)


def test_mask_buffer():
    buffer = ts.MaskBuffer()
    mask = torch.tensor([True, False, True])
    with pytest.raises(
        RuntimeError, match="MaskBuffer has not been materialized"
    ):
        buffer.release_mask()
    with pytest.raises(
        RuntimeError, match="MaskBuffer has not been materialized"
    ):
        buffer.apply_mask(torch.ones(3))
    assert not buffer.is_materialized
    buffer.materialize_mask(mask)
    assert buffer.is_materialized
    with pytest.raises(
        RuntimeError, match="MaskBuffer has already been materialized"
    ):
        buffer.materialize_mask(mask)
    entries, rows = torch.ones(3), torch.ones(3, 2)
    buffer.apply_mask(entries)
    buffer.apply_mask(rows)
    assert entries.tolist() == [0, 1, 0]
    assert rows.sum(1).tolist() == [0, 2, 0]
    with pytest.raises(ValueError, match="one dimension more"):
        buffer.apply_mask(torch.ones(3, 2, 2))
    buffer.release_mask()
    with pytest.raises(TypeError, match="bool"):
        buffer.materialize_mask(torch.ones(3))
