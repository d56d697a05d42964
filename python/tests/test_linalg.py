"""Matrices that cannot be factored, on the rank that has them."""

import pytest
import torch
from both_worlds import in_both_worlds

import tessera as ts
from tessera import Replicate, Shard
from tessera.debug import CommDebugMode


def batch(placement, bad=None):
    matrices = torch.eye(3, dtype=torch.float64).repeat(8, 1, 1)
    if bad is not None:
        matrices[bad, 2, 2] = 0
    mesh = ts.init_device_mesh("cpu", (4,))
    return ts.distribute_tensor(matrices, mesh, [placement])


def body_every_rank_names_the_matrix(here):
    for placement in (Shard(0), Shard(1), Replicate()):
        matrices = batch(placement, bad=5)
        for call in (torch.linalg.inv, torch.linalg.cholesky):
            with pytest.raises(torch.linalg.LinAlgError, match="Batch element 5"):
                call(matrices)
        with pytest.raises(torch.linalg.LinAlgError, match="Batch element 5"):
            torch.linalg.solve(matrices, batch(placement))
    # Nobody is a collective behind.
    torch.testing.assert_close(
        torch.linalg.inv(batch(Shard(0))).full_tensor(),
        batch(Shard(0)).full_tensor(),
    )


def body_the_batch_stays_where_it_is(here):
    matrices = batch(Shard(0))
    with ts.strict(), ts.explicit_communication(), CommDebugMode() as comm:
        assert torch.linalg.inv(matrices).placements == (Shard(0),)
        assert torch.linalg.cholesky(matrices).placements == (Shard(0),)
    assert set(comm.get_comm_counts()) == {"agree"}


test_simulated, test_processes = in_both_worlds(
    body_every_rank_names_the_matrix,
    body_the_batch_stays_where_it_is,
)
