"""Ragged batches: shards of any size."""

import pytest
import torch
from both_worlds import in_both_worlds, mine
from processes import RANKS, run

import tessera as ts
from tessera import DTensor, Replicate, Shard


def batch(here, rows, width=3):
    """This rank's rows of the whole, which is the same everywhere."""
    whole = torch.arange(sum(rows) * width, dtype=torch.float64).view(-1, width)
    return whole, mine(here, [part.clone() for part in whole.split(rows)])


def leaves(local):
    tensors = local if isinstance(local, list) else [local]
    return [tensor.requires_grad_() for tensor in tensors]


def body_values_and_gradients(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    for rows in ([4, 4, 4, 3], [5, 4, 4, 4], [0, 7, 0, 1], [0, 0, 1, 0]):
        whole, local = batch(here, rows)
        parts = leaves(local)
        x = DTensor.from_local(local, mesh, [Shard(0)], uneven=True)
        assert x.shape == whole.shape
        assert torch.equal(x.full_tensor(), whole)
        assert x.mean().item() == pytest.approx(whole.mean().item())
        x.square().sum().backward()
        for part in parts:
            assert torch.equal(part.grad, 2 * part.detach())


def body_two_mesh_dimensions(here):
    mesh = ts.init_device_mesh("cpu", (2, 2))
    whole, local = batch(here, [1, 5, 0, 3])
    x = DTensor.from_local(local, mesh, [Shard(0), Shard(0)], uneven=True)
    assert torch.equal(x.full_tensor(), whole)
    # Rows 0 and 1 hold replicas of one half, rows 2 and 3 of the other.
    half = mine(here, [torch.full((n,), n) for n in (3, 3, 2, 2)])
    y = DTensor.from_local(half, mesh, [Shard(0), Replicate()], uneven=True)
    assert y.full_tensor().tolist() == [3, 3, 3, 2, 2]


def body_what_does_not_fit(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    odd = mine(here, [torch.ones(2, 3 + (r == 3)) for r in range(RANKS)])
    with pytest.raises(ValueError, match=r"differ in dimension 1 on \[S\(0\)\]"):
        DTensor.from_local(odd, mesh, [Shard(0)], uneven=True)
    with pytest.raises(ValueError, match="uneven was given together with shape"):
        DTensor.from_local(
            torch.ones(2), mesh, [Shard(0)], shape=(8,), uneven=True
        )


test_simulated, test_processes = in_both_worlds(
    body_values_and_gradients, body_two_mesh_dimensions, body_what_does_not_fit
)


def test_plain_from_local_finds_out_in_a_simulated_world(mesh):
    locals_ = [torch.ones(4 if r < 3 else 3, 2) for r in range(RANKS)]
    with pytest.raises(ValueError, match="pass uneven=True, or shape"):
        DTensor.from_local(locals_, mesh, [Shard(0)])


def not_found_out(rank):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    x = DTensor.from_local(torch.ones(4 if rank < 3 else 3, 2), mesh, [Shard(0)])
    with pytest.raises(RuntimeError) as error:
        x.mean().item()
    assert "different shapes on the two ranks" in str(error.value)
    assert "need its option uneven, or shape" in str(error.value)


def test_plain_from_local_finds_out_with_the_next_collective():
    run(not_found_out)
