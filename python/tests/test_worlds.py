"""Worlds by hand, and what is left of one that has ended."""

import pytest
import torch
from processes import RANKS, run

import tessera as ts
from tessera import Shard


def test_enter_and_leave():
    world = ts.simulate(3).enter()
    try:
        mesh = ts.init_device_mesh("cpu", (3,))
        x = ts.distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        assert torch.equal(x.full_tensor(), torch.arange(4.0))
        assert world.size == 3
    finally:
        world.leave()
    with pytest.raises(RuntimeError, match="not entered"):
        world.leave()
    with pytest.raises(RuntimeError, match=r"call enter\(\)"):
        world.size
    # It may be entered again.
    with world:
        assert world.size == 3


def test_repr():
    world = ts.simulate(4)
    assert repr(world) == "World(4 ranks, simulated, not entered)"
    with world:
        assert repr(world) == "World(4 ranks, simulated)"
    assert repr(ts.simulate(1)) == "World(1 rank, simulated, not entered)"
    connected = ts.World.connect(1, 2, "localhost", 29500)
    assert repr(connected) == "World(rank 1 of 2 processes, not entered)"
    assert "from the environment" in repr(ts.World.from_environment(2))


@pytest.mark.parametrize("ranks", [0, -1])
def test_no_ranks(ranks):
    with pytest.raises(ValueError, match="at least one rank"):
        ts.simulate(ranks)


def test_tensors_of_a_world_that_has_ended():
    with ts.simulate(4):
        old_mesh = ts.init_device_mesh("cpu", (4,))
        old = ts.distribute_tensor(torch.arange(8.0), old_mesh, [Shard(0)])
    ended = "world .* has ended"
    with pytest.raises(RuntimeError, match=ended):
        old.full_tensor()
    with ts.simulate(4):
        mesh = ts.init_device_mesh("cpu", (4,))
        new = ts.distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        for call in (
            lambda: new + old,
            lambda: old + new,
            lambda: torch.cat([new, old]),
            lambda: new.add_(old),
            lambda: old.redistribute(mesh, [ts.Replicate()]),
            lambda: ts.distribute_tensor(old, mesh, [Shard(0)]),
        ):
            with pytest.raises((RuntimeError, ValueError), match=ended):
                call()


def over_processes(rank):
    world = ts.World.from_environment(2)
    assert repr(world) == "World(from the environment, not entered)"
    with world:
        assert repr(world) == f"World(rank {rank} of {RANKS} processes)"
        mesh = ts.init_device_mesh("cpu", (RANKS,))
        old = ts.distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    with pytest.raises(RuntimeError, match="world .* has ended"):
        old.full_tensor()


def test_processes():
    run(over_processes, use_torch=False)
