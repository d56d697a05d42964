"""The same library over four processes, beside torch.distributed."""

import copy
import os
import pickle
import tempfile

import pytest
import torch
import torch.distributed as dist
from processes import RANKS, run
from torch import nn

import tessera as ts
from tessera import DTensor, Partial, Replicate, Shard


def body_tensors(rank):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    assert mesh.get_coordinate() == [rank]
    assert mesh.get_local_rank() == rank
    # Every rank has another value; rank 0's counts.
    value = torch.arange(10.0) + 100 * rank
    x = ts.distribute_tensor(value, mesh, [Shard(0)])
    assert torch.equal(x.to_local(), torch.arange(10.0).chunk(RANKS)[rank])
    assert torch.equal(x._local_tensor, x.shard(rank))
    assert torch.equal(x.full_tensor(), torch.arange(10.0))
    y = DTensor.from_local(torch.ones(3) * rank, mesh, [Partial()])
    assert torch.equal(y.full_tensor(), torch.full((3,), 6.0))
    assert f"rank {rank}" in repr(x) and f"rank {(rank + 1) % 4}" not in repr(x)
    with ts.debug.CommDebugMode() as comm:
        x.sum().full_tensor()
    assert comm.get_comm_counts() == {torch.ops.c10d_functional.all_reduce: 1}
    again = pickle.loads(pickle.dumps(x))
    assert again._spec == x._spec
    assert torch.equal(again.to_local(), x.to_local())


def body_torch_objects(rank):
    theirs = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    value = torch.randn(4, 6)
    x = ts.distribute_tensor(value, theirs, [Shard(0), Shard(1)])
    assert x.device_mesh.shape == (2, 2)
    assert x.device_mesh.mesh_dim_names == ("dp", "tp")
    assert x.to_local().shape == (2, 3)
    assert torch.equal(x.full_tensor(), value)
    assert x.redistribute(theirs, [Replicate(), Replicate()]).placements == (
        Replicate(),
        Replicate(),
    )
    # A slice of theirs: each rank's own row of ranks.
    row = ts.distribute_tensor(value, theirs["tp"], [Shard(1)])
    assert row.device_mesh.size() == 2
    assert row.to_local().shape == (4, 3)
    assert torch.equal(row.full_tensor(), value)
    # A process group.
    ones = DTensor.from_local(torch.ones(2), dist.group.WORLD, [Partial()])
    assert torch.equal(ones.full_tensor(), torch.full((2,), 4.0))
    # torch's own collectives go on working.
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == RANKS
    # A simulated world inside.
    with ts.simulate(3):
        mesh = ts.init_device_mesh("cpu", (3,))
        assert ts.ones(3, device_mesh=mesh).sum().item() == 3
    assert ts.init_device_mesh("cpu", (RANKS,)).get_local_rank() == rank


def body_beside_torch_dtensor(rank):
    from torch.distributed.tensor import Shard as TorchShard
    from torch.distributed.tensor import distribute_tensor

    mesh = dist.init_device_mesh("cpu", (RANKS,))
    value = torch.randn(8, 4)
    theirs = distribute_tensor(value, mesh, [TorchShard(0)])
    assert not isinstance(theirs, DTensor)
    assert torch.equal(theirs.full_tensor(), value)
    assert theirs.placements == (TorchShard(0),)
    ours = ts.distribute_tensor(value, mesh, [TorchShard(0)])
    torch.testing.assert_close(
        (ours @ ours.t()).full_tensor(), (theirs @ theirs.t()).full_tensor()
    )


def body_training(rank):
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    model = ts.distribute_module(copy.deepcopy(plain), mesh)
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=0.01) for m in (plain, model)
    ]
    for _ in range(3):
        x, y = torch.randn(8, 6), torch.randn(8, 4)
        nn.functional.mse_loss(plain(x), y).backward()
        nn.functional.mse_loss(
            model(ts.distribute_tensor(x, mesh, [Shard(0)])),
            ts.distribute_tensor(y, mesh, [Shard(0)]),
        ).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(
            ours.detach().full_tensor(), theirs.detach(), rtol=1e-4, atol=1e-5
        )
    name = os.path.join(tempfile.gettempdir(), f"tessera-{os.getpid()}.pt")
    try:
        torch.save(model.state_dict(), name)
        ts.distribute_module(plain, mesh).load_state_dict(torch.load(name))
    finally:
        os.remove(name)
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.equal(ours.to_local(), theirs.to_local())


def body_outside_the_mesh(rank):
    mesh = ts.DeviceMesh("cpu", [1, 2])
    x = ts.distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    assert x.to_local().numel() == (2 if rank in (1, 2) else 0)
    assert (mesh.get_coordinate() is None) == (rank not in (1, 2))


def body_again_after_destroy(rank):
    first = ts.init_device_mesh("cpu", (RANKS,))
    assert ts.ones(4, device_mesh=first).sum().item() == 4
    dist.barrier()
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo")
    second = ts.init_device_mesh("cpu", (RANKS,))
    assert second != first
    x = DTensor.from_local(torch.ones(1), second, [Partial()])
    assert x.full_tensor().item() == 4


def body_store(rank):
    """Ranks meet in a store that they have, again and again; it stays as it is."""
    store = dist.distributed_c10d._get_default_store()
    timeout = store.timeout
    for _ in range(2):
        with ts.World.connect(rank, RANKS, store, timeout=60) as world:
            assert (world.rank, world.size, world.timeout) == (rank, RANKS, 60)
            mesh = ts.init_device_mesh("cpu", (RANKS,))
            x = DTensor.from_local(torch.ones(2), mesh, [Partial()])
            assert torch.equal(x.full_tensor(), torch.full((2,), 4.0))
    assert store.timeout == timeout
    with pytest.raises(ValueError, match="expected a rank from 0 to 3"):
        ts.World.connect(4, RANKS, store).__enter__()
    with pytest.raises(TypeError):
        ts.World.connect(rank, RANKS, None).__enter__()


def body_without_torch(rank):
    assert not dist.is_initialized()
    mesh = ts.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    value = torch.arange(12.0).view(4, 3)
    x = ts.distribute_tensor(value, mesh, [Shard(0), Shard(0)])
    assert torch.equal(x.full_tensor(), value)
    group = mesh.get_group("b")
    assert (group.size(), group.rank()) == (2, rank % 2)


def body_errors(rank):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    try:
        DTensor.from_local(
            torch.ones(2 + rank), mesh, [Replicate()], run_check=True
        )
    except ValueError as error:
        assert "[from_local]" in str(error)
    else:
        raise AssertionError("shards of different shapes went through")


@pytest.mark.parametrize(
    "body",
    [
        body_tensors,
        body_torch_objects,
        body_beside_torch_dtensor,
        body_training,
        body_outside_the_mesh,
        body_again_after_destroy,
        body_store,
        body_errors,
    ],
    ids=lambda body: body.__name__.removeprefix("body_"),
)
def test_beside_torch(body):
    run(body)


def test_without_torch():
    run(body_without_torch, use_torch=False)
