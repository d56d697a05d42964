"""ShardedTensor and lookups in it, in both worlds, beside one device."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from both_worlds import in_both_worlds, listed, mine
from processes import RANKS

import tessera as ts
from tessera.sharded import (
    ChunkShardingSpec,
    RowSgd,
    ShardedTensor,
    sharded_embedding,
    sharded_embedding_bag,
)

NAMES = [f"rank:{rank}/cpu" for rank in range(RANKS)]
ROWS, COLUMNS = 10, 6


def spec_of(dim):
    return ChunkShardingSpec(dim, NAMES)


def make_table():
    return torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) / 8 - 3


# ---- the tensor ----


def body_from_full(here):
    table = make_table()
    for dim in (0, 1):
        # The value of the lowest rank counts.
        weight = ShardedTensor.from_full(table + here[0], spec_of(dim))
        assert weight.size() == torch.Size((ROWS, COLUMNS))
        assert (weight.size(0), weight.size(-1)) == (ROWS, COLUMNS)
        assert weight.sharding_spec() == spec_of(dim)
        shards = weight.local_shards()
        assert [shard.rank for shard in shards] == here
        for shard in shards:
            chunks = table.chunk(RANKS, dim)
            expected = (
                chunks[shard.rank] if shard.rank < len(chunks) else table[:0]
            )
            assert torch.equal(
                shard.tensor.reshape(-1), expected.reshape(-1)
            )
        assert shards[0].offsets[1 - dim] == 0
        assert torch.equal(weight.dtensor().full_tensor(), table)
        known = ShardedTensor.from_full(
            table, spec_of(dim), same_on_all_ranks=True
        )
        assert torch.equal(known.dtensor(), weight.dtensor())


def body_from_shards_and_back(here):
    table = make_table()
    parts = [part.clone() for part in table.split([3, 3, 3, 1])]
    weight = ShardedTensor.from_local_shards(
        mine(here, parts), (ROWS, COLUMNS), spec_of(0)
    )
    for rank, shard in zip(here, weight.local_shards()):
        assert shard.tensor.data_ptr() == parts[rank].data_ptr()
        assert shard.offsets == (3 * rank, 0)
    dtensor = weight.dtensor()
    assert isinstance(dtensor, ts.DTensor)
    assert dtensor.placements == (ts.Shard(0),)
    assert torch.equal(dtensor.full_tensor(), table)
    again = ShardedTensor(dtensor)
    assert again.dtensor() is dtensor
    assert again.sharding_spec() == spec_of(0)
    if len(here) == 1:
        assert torch.equal(weight.local_tensor(), parts[here[0]])
    else:
        with pytest.raises(ValueError, match="use local_shards"):
            weight.local_tensor()
    mesh = dtensor.device_mesh
    other = ShardedTensor(ts.distribute_tensor(table, mesh))
    assert other.sharding_spec() is None
    assert weight.grad is None and not weight.requires_grad
    assert weight.requires_grad_() is weight and weight.requires_grad
    assert not weight.requires_grad_(False).requires_grad
    assert "rank:3/cpu" in repr(weight)


def body_order_of_ranks(here):
    table = make_table()
    order = ["rank:2/cpu", "rank:0/cpu", "rank:3/cpu", "rank:1/cpu"]
    weight = ShardedTensor.from_full(table, ChunkShardingSpec(0, order))
    for shard in weight.local_shards():
        chunk = order.index(f"rank:{shard.rank}/cpu")
        assert torch.equal(shard.tensor, table.chunk(RANKS)[chunk])
    inputs = [torch.tensor([[rank, 9]]) for rank in range(RANKS)]
    bags = listed(sharded_embedding_bag(mine(here, inputs), weight))
    for rank, bag in zip(here, bags):
        torch.testing.assert_close(bag, F.embedding_bag(inputs[rank], table))


def body_errors_of_the_tensor(here):
    table = make_table()
    with pytest.raises(TypeError, match="expected a distributed tensor"):
        ShardedTensor(table)
    with pytest.raises(TypeError, match="expected a ChunkShardingSpec"):
        ShardedTensor.from_full(table, "rows")
    with pytest.raises(ValueError, match="out of range"):
        ShardedTensor.from_full(table, spec_of(2))
    with pytest.raises(ValueError, match="size|shape"):
        ShardedTensor.from_local_shards(
            mine(here, [table] * RANKS), table.shape, spec_of(0)
        )
    with pytest.raises(TypeError, match="expected a tensor, or a list"):
        ShardedTensor.from_local_shards(3, table.shape, spec_of(0))
    weight = ShardedTensor.from_full(table, spec_of(0))
    with pytest.raises(IndexError, match="dim 2"):
        weight.size(2)


# ---- lookups ----


def bags_of_ranks(offsets):
    """Different numbers of bags a rank; one rank has none, one bag is empty."""
    lists = [
        [[1, 2, 2], [9]],
        [[], [0, 5, 5, 7]],
        [],
        [[3], [3, 4], [8, 1, 9]],
    ]
    if not offsets:
        lists = [[[1, 2], [9, 0]], [[5, 5]], [], [[3, 4], [8, 1], [2, 2]]]
        return [
            torch.tensor(bags, dtype=torch.long).view(-1, 2) for bags in lists
        ], [None] * RANKS
    inputs = [torch.tensor(sum(bags, []), dtype=torch.long) for bags in lists]
    starts = [
        torch.tensor(
            list(itertools.accumulate([0] + [len(b) for b in bags]))[:-1],
            dtype=torch.long,
        )
        for bags in lists
    ]
    return inputs, starts


def check_against_one_device(here, dim, offsets, **options):
    """Forward and backward of every rank's bags; returns nothing."""
    inputs, starts = bags_of_ranks(offsets)
    last = options.get("include_last_offset", False)
    if last:
        starts = [
            torch.cat([s, torch.tensor([i.numel()])])
            for s, i in zip(starts, inputs)
        ]
    per_sample_weights = [None] * RANKS
    if options.pop("weighted", False):
        per_sample_weights = [
            (torch.arange(i.numel()).view(i.shape) / 4 - 1).requires_grad_()
            for i in inputs
        ]
    table = make_table().requires_grad_()
    plain = [
        F.embedding_bag(
            inputs[rank],
            table,
            starts[rank],
            per_sample_weights=per_sample_weights[rank],
            **options,
        )
        for rank in range(RANKS)
    ]
    for rank, bags in enumerate(plain):
        (bags * (rank + 1)).square().sum().backward()
    weight = ShardedTensor.from_full(make_table(), spec_of(dim))
    weight.requires_grad_()
    own = [
        None if w is None else w.detach().requires_grad_()
        for w in per_sample_weights
    ]
    found = listed(
        sharded_embedding_bag(
            mine(here, inputs),
            weight,
            mine(here, starts) if offsets else None,
            per_sample_weights=None if own[0] is None else mine(here, own),
            **options,
        )
    )
    losses = []
    for rank, bags in zip(here, found):
        torch.testing.assert_close(bags, plain[rank])
        assert not isinstance(bags, ts.DTensor)
        losses.append((bags * (rank + 1)).square().sum())
    sum(losses).backward()
    torch.testing.assert_close(
        weight.grad.dtensor().full_tensor(), table.grad
    )
    assert weight.grad.sharding_spec() == weight.sharding_spec()
    for rank in here:
        if own[rank] is not None:
            torch.testing.assert_close(
                own[rank].grad, per_sample_weights[rank].grad
            )


def body_bags(here):
    for dim, mode, offsets in itertools.product(
        (0, 1), ("sum", "mean", "max"), (False, True)
    ):
        for padding_idx in (None, 5, -1):
            check_against_one_device(
                here, dim, offsets, mode=mode, padding_idx=padding_idx
            )


def body_bags_with_weights(here):
    for dim, offsets in itertools.product((0, 1), (False, True)):
        check_against_one_device(
            here, dim, offsets, mode="sum", weighted=True
        )


def body_bags_with_last_offset(here):
    for dim, mode in itertools.product((0, 1), ("sum", "mean", "max")):
        check_against_one_device(
            here, dim, True, mode=mode, include_last_offset=True
        )


def body_ways(here):
    inputs, _ = bags_of_ranks(False)
    for strategy, mode in itertools.product(
        ("cheapest", "pooled", "rows"), ("sum", "mean", "max")
    ):
        weight = ShardedTensor.from_full(make_table(), spec_of(0))
        found = sharded_embedding_bag(
            mine(here, inputs), weight, mode=mode, strategy=strategy
        )
        for rank, bags in zip(here, listed(found)):
            torch.testing.assert_close(
                bags, F.embedding_bag(inputs[rank], make_table(), mode=mode)
            )
    with pytest.raises(ValueError, match="strategy"):
        sharded_embedding_bag(mine(here, inputs), weight, strategy="fast")


def body_max_norm(here):
    inputs, _ = bags_of_ranks(False)
    for dim, norm_type in itertools.product((0, 1), (1.0, 2.0)):
        table = make_table()
        everything = torch.cat(inputs)
        expected = F.embedding_bag(
            everything, table, max_norm=2.0, norm_type=norm_type
        ).split([len(i) for i in inputs])
        weight = ShardedTensor.from_full(make_table(), spec_of(dim))
        found = sharded_embedding_bag(
            mine(here, inputs), weight, max_norm=2.0, norm_type=norm_type
        )
        for rank, bags in zip(here, listed(found)):
            torch.testing.assert_close(bags, expected[rank])
        torch.testing.assert_close(weight.dtensor().full_tensor(), table)


def body_rows(here):
    inputs = [
        torch.tensor(5),
        torch.tensor([[1, 9], [9, 9]]),
        torch.empty(0, 2, dtype=torch.long),
        torch.tensor([0, 5, 2], dtype=torch.int32),
    ]
    for dim, padding_idx in itertools.product((0, 1), (None, 5, -1)):
        table = make_table().requires_grad_()
        weight = ShardedTensor.from_full(make_table(), spec_of(dim))
        weight.requires_grad_()
        for rank in range(RANKS):
            F.embedding(inputs[rank], table, padding_idx).square().sum().backward()
        found = listed(
            sharded_embedding(mine(here, inputs), weight, padding_idx)
        )
        for rank, rows in zip(here, found):
            assert rows.shape == (*inputs[rank].shape, COLUMNS)
            torch.testing.assert_close(
                rows.detach(), F.embedding(inputs[rank], make_table())
            )
        sum(rows.square().sum() for rows in found).backward()
        torch.testing.assert_close(
            weight.grad.dtensor().full_tensor(), table.grad
        )


def body_training(here):
    """An optimizer on the distributed tensor steps as on one device."""
    inputs, starts = bags_of_ranks(True)
    for dim in (0, 1):
        table = make_table().requires_grad_()
        weight = ShardedTensor.from_full(make_table(), spec_of(dim))
        weight.requires_grad_()
        optimizers = [
            torch.optim.Adagrad([t], lr=0.5) for t in (table, weight.dtensor())
        ]
        for _ in range(3):
            sum(
                F.embedding_bag(i, table, s).square().sum()
                for i, s in zip(inputs, starts)
            ).backward()
            found = sharded_embedding_bag(
                mine(here, inputs), weight, mine(here, starts)
            )
            sum(bags.square().sum() for bags in listed(found)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(
            weight.dtensor().full_tensor(), table.detach()
        )


def check_update(here, look_up, look_up_plain, lr=0.25):
    """A step in the backward pass is one device's, and leaves no gradient."""
    for dim in (0, 1):
        table = make_table().requires_grad_()
        for rank in range(RANKS):
            (look_up_plain(rank, table).square().sum() * (rank + 1)).backward()
        weight = ShardedTensor.from_full(make_table(), spec_of(dim))
        weight.requires_grad_()
        found = listed(look_up(weight, RowSgd(lr)))
        sum(
            rows.square().sum() * (rank + 1) for rank, rows in zip(here, found)
        ).backward()
        moved = weight.dtensor().detach().full_tensor()
        torch.testing.assert_close(moved, make_table() - lr * table.grad)
        assert not torch.equal(moved, make_table())
        assert weight.grad is None
        with torch.no_grad():
            look_up(weight, RowSgd(lr))
        assert torch.equal(weight.dtensor().detach().full_tensor(), moved)


def body_update_of_bags(here):
    inputs, starts = bags_of_ranks(True)
    for mode in ("sum", "mean", "max"):
        check_update(
            here,
            lambda weight, update: sharded_embedding_bag(
                mine(here, inputs),
                weight,
                mine(here, starts),
                mode=mode,
                update=update,
            ),
            lambda rank, table: F.embedding_bag(
                inputs[rank], table, starts[rank], mode=mode
            ),
        )


def body_update_of_rows(here):
    inputs = [
        torch.tensor([[1, 9], [9, 9]]),
        torch.tensor(5),
        torch.empty(0, dtype=torch.long),
        torch.tensor([0, 5, 2], dtype=torch.int32),
    ]
    for padding_idx in (None, 9):
        check_update(
            here,
            lambda weight, update: sharded_embedding(
                mine(here, inputs), weight, padding_idx, update=update
            ),
            lambda rank, table: F.embedding(inputs[rank], table, padding_idx),
        )


def body_updates_of_two_lookups(here):
    """Each makes its own step."""
    weight = ShardedTensor.from_full(make_table(), spec_of(0))
    weight.requires_grad_()
    inputs = [torch.tensor([rank, 9]) for rank in range(RANKS)]
    found = [
        rows
        for _ in range(2)
        for rows in listed(
            sharded_embedding(mine(here, inputs), weight, update=RowSgd(0.5))
        )
    ]
    sum(rows.sum() for rows in found).backward()
    steps = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 4.0]).unsqueeze(1)
    assert torch.equal(
        weight.dtensor().detach().full_tensor(), make_table() - steps
    )


def test_row_sgd_is_a_value():
    assert RowSgd(0.5).lr == RowSgd(lr=0.5).lr == 0.5
    assert repr(RowSgd(0.5)) == "RowSgd(lr=0.5)"
    with pytest.raises(AttributeError):
        RowSgd(0.5).lr = 1
    with pytest.raises(TypeError):
        RowSgd()


test_simulated, test_processes = in_both_worlds(
    body_from_full,
    body_from_shards_and_back,
    body_order_of_ranks,
    body_errors_of_the_tensor,
    body_bags,
    body_bags_with_weights,
    body_bags_with_last_offset,
    body_ways,
    body_max_norm,
    body_rows,
    body_training,
    body_update_of_bags,
    body_update_of_rows,
    body_updates_of_two_lookups,
)


# ---- specs ----


def test_specs_are_values():
    spec = ChunkShardingSpec(0, ["rank:1/cpu", 0])
    assert spec.dim == 0
    assert [p.rank for p in spec.placements] == [1, 0]
    assert spec.placements[0].device_type == "cpu"
    assert spec == ChunkShardingSpec(0, ["rank:1/cpu", "rank:0/cpu"])
    assert spec != ChunkShardingSpec(1, ["rank:1/cpu", "rank:0/cpu"])
    assert spec != 3
    assert repr(spec) == (
        "ChunkShardingSpec(dim=0, placements=[rank:1/cpu, rank:0/cpu])"
    )


@pytest.mark.parametrize("text", ["cpu", "rank:x/cpu", "rank:1/", "", "rank:-1"])
def test_placements_that_are_none(text):
    with pytest.raises(ValueError, match="like rank:2/cpu"):
        ChunkShardingSpec(0, [text])


def test_spec_errors():
    with pytest.raises(ValueError, match="at least one placement"):
        ChunkShardingSpec(0, [])
    with pytest.raises(ValueError, match="one kind of device"):
        ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cuda:0"])
    with pytest.raises(TypeError, match="list of placements"):
        ChunkShardingSpec(0, "rank:0/cpu")


def test_torchs_spec_is_taken(world):
    from torch.distributed._shard.sharding_spec import (
        ChunkShardingSpec as TorchSpec,
    )

    weight = ShardedTensor.from_full(make_table(), TorchSpec(1, NAMES))
    assert weight.sharding_spec() == spec_of(1)
