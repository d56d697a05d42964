"""Copies of objects, and objects that nobody has made properly.

`copy` and unpicklers call __reduce__ and __new__. Each class that is bound is
asked in a child process: what went wrong used to end the process.
"""

import copy
import io
import pickle

import pytest
import torch
from processes import forkserver

import tessera as ts
from tessera import _C, Partial, Replicate, Shard
from tessera.sharded import ChunkShardingSpec, RowSgd, ShardedTensor, ShardPlacement

from torch.testing._internal.two_tensor import TwoTensor  # isort:skip

CLASSES = [value for value in vars(_C).values() if isinstance(value, type)]


def in_a_child(body, *args):
    """What the body returns; fails where its process ends otherwise."""
    context = forkserver()
    reading, writing = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(writing, body, args))
    child.start()
    writing.close()
    try:
        return reading.recv()
    except EOFError:
        child.join()
        pytest.fail(f"the process ended with {child.exitcode}")
    finally:
        child.join()


def _answer(writing, body, args):
    writing.send(body(*args))


def is_method(name, value):
    return callable(value) and name not in ("__class__", "__init__", "__new__")


def attributes_of_unmade(name):
    """What is not refused of an object that __new__ alone has made."""
    made = getattr(_C, name).__new__(getattr(_C, name))
    answered = []
    for attribute in dir(type(made)):
        try:
            value = getattr(made, attribute)
        except Exception:
            continue
        if hasattr(object, attribute) and attribute not in ("__repr__", "__eq__"):
            continue  # as every object has it
        if not is_method(attribute, value):
            answered.append(attribute)
            continue
        for args in ((), (made,), (0,), ("a", 1)):
            try:
                value(*args)
            except Exception:
                continue
            # That two such objects are not equal is a right answer, and a
            # static method has no object.
            if attribute not in ("__eq__", "__repr__") and not args:
                answered.append(attribute)
    return answered


@pytest.mark.parametrize("name", [cls.__name__ for cls in CLASSES])
def test_objects_without_init_are_refused(name):
    answered = in_a_child(attributes_of_unmade, name)
    static = {
        key for cls in getattr(_C, name).__mro__ for key, value in vars(cls).items()
        if isinstance(value, staticmethod)
    }
    assert set(answered) <= static | {"__doc__", "__module__"}


def unmade_as_arguments():
    """Where unmade objects go in: the functions of the module."""
    made = [cls.__new__(cls) for cls in CLASSES]
    with ts.simulate(2):
        mesh = ts.init_device_mesh("cpu", (2,))
        x = ts.distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)])
        for value in made:
            for call in (
                lambda v: ts.distribute_tensor(torch.randn(4, 3), v, [Shard(0)]),
                lambda v: ts.distribute_tensor(torch.randn(4, 3), mesh, [v]),
                lambda v: ts.DTensor.from_local([torch.ones(2)] * 2, mesh, [v]),
                lambda v: x.redistribute(v, [Replicate()]),
                lambda v: x.redistribute(placements=[v]),
                lambda v: ShardedTensor.from_full(torch.randn(4, 3), v),
                lambda v: ts.sharded.sharded_embedding([torch.tensor([0])] * 2, v),
                lambda v: ts.zeros(4, 3, device_mesh=v),
                lambda v: mesh == v,
                lambda v: v == v,
                lambda v: str(v),
                lambda v: hash(v),
            ):
                try:
                    call(value)
                except Exception:
                    pass
    return True


def test_objects_without_init_as_arguments():
    assert in_a_child(unmade_as_arguments)


def made_objects():
    """One of each class that users can make or get."""
    mesh = ts.init_device_mesh("cpu", (2,))
    spec = ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"])
    table = ShardedTensor.from_full(torch.randn(4, 3), spec)
    return [
        mesh,
        Shard(0),
        Replicate(),
        Partial(),
        ts.placement_types.MaskPartial(offset_shape=[4, 3], offset_dim=0),
        ShardPlacement(1),
        spec,
        table,
        table.local_shards()[0],
        RowSgd(0.1),
        table.dtensor()._spec,
        ts.MaskBuffer(),
        ts.EmbeddingScope(max_norm=True),
        ts.debug.CommDebugMode(),
        _C.World.simulate(2),
    ]


def copies_of_all():
    """The classes whose copies are neither made nor refused in a sentence."""
    wrong = []
    with ts.simulate(2):
        for value in made_objects():
            ways = [copy.copy, copy.deepcopy, lambda v: v.__reduce__()]
            ways += [
                lambda v, p=protocol: pickle.loads(pickle.dumps(v, p))
                for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
            ]
            for way in ways:
                try:
                    way(value)
                except TypeError as error:
                    if "cannot be copied" not in str(error):
                        wrong.append(f"{type(value).__name__}: {error}")
    return wrong


def test_every_object_is_copied_or_refused():
    assert in_a_child(copies_of_all) == []


@pytest.fixture
def table(world):
    spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(4)])
    return ShardedTensor.from_full(torch.randn(6, 3), spec).requires_grad_()


def test_a_copy_shares_and_a_deep_copy_does_not(table):
    shared, own = copy.copy(table), copy.deepcopy(table)
    for made in (shared, own):
        assert made.sharding_spec() == table.sharding_spec()
        assert made.requires_grad
        assert torch.equal(made.dtensor().full_tensor(), table.dtensor().full_tensor())
    with torch.no_grad():
        table.local_shards()[0].tensor.zero_()
    assert shared.local_shards()[0].tensor.abs().sum() == 0
    assert own.local_shards()[0].tensor.abs().sum() > 0


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_saved_sharded_tensor_is_read(table, weights_only):
    file = io.BytesIO()
    torch.save({"table": table, "spec": table.sharding_spec()}, file)
    file.seek(0)
    read = torch.load(file, weights_only=weights_only)
    assert read["spec"] == table.sharding_spec()
    assert read["table"].sharding_spec() == table.sharding_spec()
    assert torch.equal(
        read["table"].dtensor().full_tensor(), table.dtensor().full_tensor()
    )


def test_several_chunks_a_rank_are_not_copied(world):
    spec = ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu", "rank:0/cpu"])
    table = ShardedTensor.from_full(torch.randn(6, 3), spec)
    with pytest.raises(ValueError, match="gives a rank several chunks"):
        copy.copy(table)


def tensors_without_memory(dtype=torch.float32):
    mode = torch._subclasses.fake_tensor.FakeTensorMode()
    zeros = torch.zeros(2, 3, dtype=dtype)
    return [
        mode.from_tensor(zeros),
        torch._efficientzerotensor((2, 3), dtype=dtype),
        TwoTensor(zeros, zeros),
    ]


def doors_for_tensors_without_memory():
    """What is not refused of tensors that have elements but no memory."""
    taken = []
    spec = ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"])
    with ts.simulate(2):
        mesh = ts.init_device_mesh("cpu", (2,))
        table = ShardedTensor.from_full(torch.randn(4, 3), spec)
        ids = tensors_without_memory(torch.int64)
        for tensor, index in zip(tensors_without_memory(), ids):
            for name, door in {
                "from_local_shards": lambda t: ShardedTensor.from_local_shards(
                    [t, t], (4, 3), spec
                ),
                "from_full": lambda t: ShardedTensor.from_full(t, spec),
                "from_local": lambda t: ts.DTensor.from_local([t, t], mesh, [Shard(0)]),
                "distribute_tensor": lambda t: ts.distribute_tensor(t, mesh, [Shard(0)]),
                "distribute_": lambda t: ts.distribute_(t, mesh, [Shard(0)]),
                "sharded_embedding": lambda t, index=index: (
                    ts.sharded.sharded_embedding([index, index], table)
                ),
            }.items():
                try:
                    door(tensor)
                    taken.append(name)
                except Exception:
                    pass
    return taken


def test_tensors_without_memory_are_refused():
    assert in_a_child(doors_for_tensors_without_memory) == []


def test_the_refusal_says_what_is_missing(mesh):
    with pytest.raises(TypeError, match="without memory"):
        ts.distribute_tensor(torch._efficientzerotensor((4, 3)), mesh, [Shard(0)])
    empty = torch._efficientzerotensor((0, 3))
    assert ts.distribute_tensor(empty, mesh, [Shard(0)]).shape == (0, 3)


def test_all_classes_are_seen():
    assert {"DeviceMesh", "ShardedTensor", "World", "DTensorSpec"} <= {
        cls.__name__ for cls in CLASSES
    }
