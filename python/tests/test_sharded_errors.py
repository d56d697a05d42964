"""What lookups in a ShardedTensor refuse: every text, with its type."""

import re

import pytest
import torch
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
PAIRS = torch.tensor([[1, 2], [9, 0]])
LINE = torch.tensor([1, 2, 9])
STARTS = torch.tensor([0, 1])


def table_of(dim):
    return ShardedTensor.from_full(
        torch.ones(10, 4), ChunkShardingSpec(dim, NAMES)
    )


def refuses(call, error, text):
    with pytest.raises(error, match=re.escape(text)) as caught:
        call()
    assert caught.type is error


# What all ranks pass: error, text, positional arguments but the weight, options.
BAGS = [
    (TypeError, "input need to be torch.Tensor", 3, None, {}),
    (TypeError, "input need to be torch.Tensor", [1, 2], None, {}),
    (TypeError, "offsets need to be torch.Tensor", LINE, [0, 1], {}),
    (TypeError, "offsets need to be torch.Tensor", LINE, 0, {}),
    (
        TypeError,
        "per_sample_weights need to be torch.Tensor",
        PAIRS,
        None,
        {"per_sample_weights": 1.0, "mode": "sum"},
    ),
    (
        ValueError,
        "Input more than 2 dims not supported",
        torch.zeros(1, 1, 1, dtype=torch.long),
        None,
        {},
    ),
    (
        ValueError,
        "Index out of range in Input 10 10",
        torch.tensor([[1, 10]]),
        None,
        {},
    ),
    (
        ValueError,
        "Index out of range in Input -1 10",
        torch.tensor([[1, -1]]),
        None,
        {},
    ),
    (
        ValueError,
        "Input dimension needs to be exactly 1 dim",
        PAIRS,
        STARTS,
        {},
    ),
    (ValueError, "offsets is required for 1D input", LINE, None, {}),
    (
        ValueError,
        "per_sample_weights size [3] not equal to input size [2, 2]",
        PAIRS,
        None,
        {"per_sample_weights": torch.ones(3), "mode": "sum"},
    ),
    (
        ValueError,
        "mode 'median' is not supported",
        PAIRS,
        None,
        {"mode": "median"},
    ),
    (
        ValueError,
        'offsets is required for flag "include_last_offset"!',
        PAIRS,
        None,
        {"include_last_offset": True},
    ),
    (
        ValueError,
        "offsets need to have the input size in the end when the flag "
        '"include_last_offset" is on!',
        LINE,
        STARTS,
        {"include_last_offset": True},
    ),
    (
        ValueError,
        '"max_norm" must be larger than zero!',
        PAIRS,
        None,
        {"max_norm": 0.0},
    ),
    (
        RuntimeError,
        'nn.Embedding weight sharded with flag on "scale_grad_by_freq" not '
        "supported!",
        PAIRS,
        None,
        {"scale_grad_by_freq": True},
    ),
    (
        RuntimeError,
        'nn.Embedding weight sharded with flag on "sparse" not supported!',
        PAIRS,
        None,
        {"sparse": True},
    ),
]


def for_all(here, value):
    """The same for each rank; what is no tensor is passed as it is."""
    if isinstance(value, torch.Tensor):
        return mine(here, [value] * RANKS)
    return value


def body_bags(here):
    for dim in (0, 1):
        weight = table_of(dim)
        for error, text, input, offsets, options in BAGS:
            options = {key: for_all(here, v) for key, v in options.items()}
            refuses(
                lambda: sharded_embedding_bag(
                    for_all(here, input),
                    weight,
                    for_all(here, offsets),
                    **options,
                ),
                error,
                "[embedding_bag] " + text,
            )
            # Nothing is left hanging.
            good = sharded_embedding_bag(for_all(here, PAIRS), weight)
            for bags in listed(good):
                assert torch.equal(bags, torch.ones(2, 4))


def body_one_bad_rank(here):
    """Every rank raises what one rank's input is refused for."""
    weight = table_of(0)
    bad_inputs = [
        (TypeError, "input need to be torch.Tensor", "indices"),
        (
            ValueError,
            "Index out of range in Input 77 10",
            torch.tensor([[77, 0]]),
        ),
        (ValueError, "offsets is required for 1D input", LINE),
    ]
    for bad_rank in range(RANKS):
        for error, text, bad in bad_inputs:
            inputs = [bad if r == bad_rank else PAIRS for r in range(RANKS)]
            refuses(
                lambda: sharded_embedding_bag(mine(here, inputs), weight),
                error,
                text,
            )


def body_rows(here):
    for dim in (0, 1):
        weight = table_of(dim)
        for error, text, input, options in [
            (TypeError, "input need to be torch.Tensor", None, {}),
            (
                ValueError,
                "Index out of range in Input 12 10",
                torch.tensor([12]),
                {},
            ),
            (
                RuntimeError,
                'nn.Embedding weight sharded with flag on "scale_grad_by_freq" '
                "not supported!",
                LINE,
                {"scale_grad_by_freq": True},
            ),
            (
                RuntimeError,
                'nn.Embedding weight sharded with flag on "sparse" not '
                "supported!",
                LINE,
                {"sparse": True},
            ),
            (
                ValueError,
                '"max_norm" must be larger than zero!',
                LINE,
                {"max_norm": -1.0},
            ),
        ]:
            refuses(
                lambda: sharded_embedding(
                    for_all(here, input), weight, **options
                ),
                error,
                "[embedding] " + text,
            )


def body_weights(here):
    """What is wrong with the table is known without a message."""
    table = torch.ones(10, 4)
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    distributed = ts.distribute_tensor(table, mesh, [ts.Shard(0)])
    replicated = ShardedTensor(ts.distribute_tensor(table, mesh))
    thick = ShardedTensor.from_full(
        torch.ones(10, 4, 2), ChunkShardingSpec(0, NAMES)
    )
    twice = ShardedTensor.from_full(
        table, ChunkShardingSpec(0, [*NAMES, "rank:0/cpu"])
    )
    cases = [
        (TypeError, "weight needs to be ShardedTensor", table),
        (TypeError, "weight needs to be ShardedTensor", distributed),
        (TypeError, "weight needs to be ShardedTensor", None),
        (ValueError, "Weight needs to have exactly 2 dims", thick),
        (
            ValueError,
            "Only ChunkShardingSpec supported for ShardedTensor ops!",
            replicated,
        ),
        (ValueError, "Only one local shard supported!", twice),
    ]
    with ts.debug.CommDebugMode() as comm:
        for error, text, weight in cases:
            refuses(
                lambda: sharded_embedding_bag(for_all(here, PAIRS), weight),
                error,
                "[embedding_bag] " + text,
            )
            refuses(
                lambda: sharded_embedding(for_all(here, LINE), weight),
                error,
                "[embedding] " + text,
            )
    assert comm.get_total_counts() == 0
    behind = table_of(-1)
    refuses(
        lambda: sharded_embedding_bag(for_all(here, PAIRS), behind),
        RuntimeError,
        "nn.EmbeddingBag weight sharded on dim -1 not supported!",
    )
    refuses(
        lambda: sharded_embedding(for_all(here, LINE), behind),
        RuntimeError,
        "nn.Embedding weight sharded on dim -1 not supported!",
    )


def body_updates(here):
    frozen = table_of(0)
    weight = table_of(0).requires_grad_()
    rate = "the lr of an update must be finite and not negative, but is "
    leaf = (
        "an update needs a weight that requires grad and is a leaf: call "
        "weight.requires_grad_(), or leave `update` out"
    )
    cases = [
        (ValueError, rate + "-0.5", weight, RowSgd(-0.5)),
        (ValueError, rate + "inf", weight, RowSgd(float("inf"))),
        (ValueError, leaf, frozen, RowSgd(0.5)),
        (
            TypeError,
            "expected update to be None or a RowSgd, as in "
            "update=RowSgd(lr=0.1), got 0.5",
            weight,
            0.5,
        ),
    ]
    for error, text, table, update in cases:
        refuses(
            lambda: sharded_embedding_bag(
                for_all(here, PAIRS), table, update=update
            ),
            error,
            "[embedding_bag] " + text,
        )
        refuses(
            lambda: sharded_embedding(
                for_all(here, LINE), table, update=update
            ),
            error,
            "[embedding] " + text,
        )
    assert torch.equal(weight.dtensor().full_tensor(), torch.ones(10, 4))


test_simulated, test_processes = in_both_worlds(
    body_bags, body_one_bad_rank, body_rows, body_weights, body_updates
)


def test_lists_of_simulated_ranks(world):
    weight = table_of(0)
    inputs = [PAIRS] * RANKS
    refuses(
        lambda: sharded_embedding_bag(PAIRS, weight),
        RuntimeError,
        "give a list with an input for each",
    )
    refuses(
        lambda: sharded_embedding_bag(inputs[1:], weight),
        ValueError,
        "expected an input for each of the 4 ranks",
    )
    refuses(
        lambda: sharded_embedding_bag([LINE] * RANKS, weight, STARTS),
        ValueError,
        "expected a list of offsets",
    )
    refuses(
        lambda: sharded_embedding_bag([LINE] * RANKS, weight, [STARTS]),
        ValueError,
        "expected offsets for each of the 4 inputs",
    )
