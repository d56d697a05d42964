"""Meshes and placements as values."""

import copy
import pickle

import pytest
import torch
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard

import tessera as ts
from tessera.placement_types import MaskPartial


def test_placements_are_values():
    assert ts.Shard(0) == ts.Shard(dim=0) != ts.Shard(1)
    assert ts.Partial() == ts.Partial("sum") != ts.Partial("max")
    assert len({ts.Shard(0), ts.Shard(0), ts.Replicate(), ts.Replicate()}) == 2
    assert ts.Shard(0) != "S(0)"
    assert ts.Shard(2).dim == 2
    assert ts.Partial("avg").reduce_op == "avg"


def test_placements_have_classes():
    assert isinstance(ts.Shard(0), ts.Placement)
    assert not isinstance(ts.Shard(0), ts.Replicate)
    mask = MaskPartial(offset_shape=(8, 4), offset_dim=0)
    assert isinstance(mask, ts.Partial)
    assert mask.is_partial() and not mask.is_shard()
    assert ts.Shard(1).is_shard(1) and not ts.Shard(1).is_shard(0)
    assert ts.Replicate().is_replicate()


def test_placements_print_as_torchs():
    for ours, theirs in (
        (ts.Shard(1), TorchShard(1)),
        (ts.Replicate(), TorchReplicate()),
        (ts.Partial("max"), TorchPartial("max")),
    ):
        assert repr(ours) == repr(theirs)
    mask = MaskPartial(offset_shape=(8, 4), offset_dim=0)
    assert str(mask) == "MaskP"
    assert repr(mask).startswith("MaskPartial(offset_shape=")
    assert mask != MaskPartial(offset_shape=(9, 4), offset_dim=0)


@pytest.mark.parametrize(
    "placement",
    [
        ts.Shard(1),
        ts.Replicate(),
        ts.Partial("min"),
        MaskPartial(offset_shape=(8, 4), offset_dim=1),
    ],
    ids=str,
)
def test_placements_pickle_and_copy(placement):
    for again in (
        pickle.loads(pickle.dumps(placement)),
        copy.deepcopy(placement),
    ):
        assert again == placement
        assert type(again) is type(placement)


def test_unknown_reduce_op():
    with pytest.raises(ValueError, match="median"):
        ts.Partial("median")


def test_mesh(world):
    mesh = ts.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert (mesh.ndim, mesh.shape, mesh.size()) == (2, (2, 2), 4)
    assert mesh.size(0) == mesh.size("tp") == 2
    assert mesh.mesh_dim_names == ("dp", "tp")
    assert mesh.device_type == "cpu"
    assert torch.equal(mesh.mesh, torch.arange(4).view(2, 2))
    assert mesh == ts.DeviceMesh(
        "cpu", [[0, 1], [2, 3]], mesh_dim_names=["dp", "tp"]
    )
    assert mesh["tp"].shape == (2,)
    assert mesh["dp", "tp"] == mesh
    assert hash(mesh) == hash(pickle.loads(pickle.dumps(mesh)))
    assert mesh != ts.DeviceMesh("cpu", torch.arange(4))
    assert "dp" in repr(mesh)


def test_mesh_errors(world):
    with pytest.raises(ValueError):
        ts.init_device_mesh("cpu", (8,))
    with pytest.raises(ValueError):
        ts.DeviceMesh("cpu", [0, 0, 1])
    mesh = ts.init_device_mesh("cpu", (2, 2))
    with pytest.raises(RuntimeError, match="several dimensions"):
        mesh.get_local_rank()


def test_no_world():
    with pytest.raises(RuntimeError, match="tessera.simulate"):
        ts.init_device_mesh("cpu", (1,))


def test_worlds_nest_and_end():
    with ts.simulate(2) as outer:
        assert outer.size == 2 and outer.simulated
        with ts.simulate(3) as inner:
            assert inner.size == 3
            assert ts.init_device_mesh("cpu", (3,)).size() == 3
        with pytest.raises(ValueError):
            ts.init_device_mesh("cpu", (3,))
    with pytest.raises(RuntimeError, match="not entered"):
        inner.size
    with pytest.raises(ValueError, match="at least one rank"):
        with ts.simulate(0):
            pass


def test_entered_mesh_is_the_default(mesh):
    with mesh:
        assert ts.zeros(4).device_mesh == mesh
        assert ts.distribute_tensor(torch.ones(2)).device_mesh == mesh
    with pytest.raises(ValueError, match="device_mesh"):
        ts.zeros(4)


def test_torchs_placements_are_taken(mesh):
    x = ts.distribute_tensor(torch.arange(8.0), mesh, [TorchShard(0)])
    assert x.placements == (ts.Shard(0),)
    assert x.redistribute(placements=[TorchReplicate()]).placements == (
        ts.Replicate(),
    )
    terms = ts.DTensor.from_local(torch.ones(2), mesh, [TorchPartial()])
    assert terms.placements == (ts.Partial(),)


def test_from_local_takes_shards_in_the_order_of_the_mesh(world):
    """Not in ascending order of rank."""
    mesh = ts.DeviceMesh("cpu", [[3, 1], [0, 2]])
    assert mesh.ranks == (3, 1, 0, 2)
    locals_ = [torch.full((1,), float(rank)) for rank in mesh.ranks]
    x = ts.DTensor.from_local(locals_, mesh, [ts.Shard(0), ts.Shard(0)])
    for rank in range(4):
        assert x.shard(rank).item() == rank
    assert x.full_tensor().tolist() == [3, 1, 0, 2]
