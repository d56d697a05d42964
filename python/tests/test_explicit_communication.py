"""The scope in which every collective is one that the program wrote."""

import pytest
import torch
from both_worlds import in_both_worlds, mine
from torch.nn import functional as F

import tessera as ts
from tessera import Replicate, Shard
from tessera.debug import CommDebugMode
from tessera.sharded import ShardedTensor, sharded_embedding

TABLE = torch.arange(64.0).view(16, 4)
IDS = torch.arange(8) * 3 % 16


def distributed(placement):
    mesh = ts.init_device_mesh("cpu", (4,))
    table = ts.distribute_tensor(TABLE, mesh, [Shard(0)])
    return mesh, table, ts.distribute_tensor(IDS, mesh, [placement])


def refused(call):
    """The text with which a call is refused; nothing may have been sent."""
    with CommDebugMode() as comm, ts.explicit_communication():
        with pytest.raises(RuntimeError) as error:
            call()
    assert comm.get_total_counts() == 0
    return str(error.value)


def body_an_argument(here):
    mesh, table, _ = distributed(Shard(0))
    text = refused(lambda: table @ table.t())
    assert "[aten.mm.default] would redistribute argument '" in text
    assert "all_gather(" in text and "bytes a rank" in text
    assert "tessera.explicit_communication()" in text


def body_lookups(here):
    mesh, table, ids = distributed(Shard(0))
    with ts.EmbeddingScope(strategy="exchange"):
        text = refused(lambda: F.embedding(ids, table))
        assert "[aten.embedding.default] would exchange argument 'indices'" in text
        assert "the strategy Exchange (at most 48 bytes a rank)" in text
        assert "tessera.sharded.sharded_embedding," in text
        text = refused(lambda: F.embedding_bag(ids.view(4, 2), table))
        assert "would exchange argument 'indices'" in text
        assert "tessera.sharded.sharded_embedding_bag," in text
    with ts.EmbeddingScope(strategy="gather"):
        text = refused(lambda: F.embedding(ids, table))
        assert "[aten.embedding.default] would redistribute argument 'indices'" in text


def body_lookups_that_send_nothing(here):
    mesh, table, ids = distributed(Replicate())
    with ts.explicit_communication():
        rows = F.embedding(ids, table)
    assert torch.equal(rows.full_tensor(), F.embedding(IDS, TABLE))


def body_an_exchange_that_was_written(here):
    mesh, table, _ = distributed(Shard(0))
    with ts.explicit_communication():
        rows = sharded_embedding(mine(here, [IDS] * 4), ShardedTensor(table))
    for mine_ in rows if isinstance(rows, list) else [rows]:
        assert torch.equal(mine_, TABLE[IDS])


test_simulated, test_processes = in_both_worlds(
    body_an_argument,
    body_lookups,
    body_lookups_that_send_nothing,
    body_an_exchange_that_was_written,
)
