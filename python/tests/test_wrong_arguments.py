"""Wrong arguments are refused in a sentence, by every function of the package."""

import inspect
import random

import pytest
import torch

import tessera as ts
from tessera import Replicate, Shard, sharded
from tessera.sharded import ChunkShardingSpec, ShardedTensor

# What users must never read.
NOT_SENTENCES = (
    "incompatible function arguments",
    "incompatible constructor arguments",
    "Invoked with",
    "INTERNAL ASSERT",
    "PYBIND11_DETAILED",
    "Unable to cast",
    "#define",
    "file a bug",
)
# Errors of the user, as the library raises them.
ERRORS = (
    TypeError,
    ValueError,
    RuntimeError,
    IndexError,
    NotImplementedError,
    AttributeError,
    KeyError,
    OverflowError,
    MemoryError,
)


def check(call, *args, **kwargs):
    """Calls; if that raises, what is said is a sentence."""
    try:
        call(*args, **kwargs)
    except ERRORS as error:
        text = str(error)
        for part in NOT_SENTENCES:
            assert part not in text, text
        assert len(text) < 2000, text


@pytest.fixture
def things(mesh):
    """Values of all kinds, good and bad."""
    plain = torch.randn(4, 3)
    spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(4)])
    return {
        "none": None,
        "bools": True,
        "zero": 0,
        "ints": 3,
        "negative": -1,
        "huge": 2**70,
        "floats": 0.5,
        "nan": float("nan"),
        "text": "abc",
        "empty text": "",
        "bytes": b"abc",
        "objects": object(),
        "classes": int,
        "functions": print,
        "sets": {1, 2},
        "dicts": {"a": 1},
        "empty lists": [],
        "lists": [0, 1],
        "tuples": (4, 3),
        "nested lists": [[0, 1], [2, 3]],
        "texts": ["a", "b"],
        "mixed": [1, "a", None],
        "huge lists": [2**70],
        "dtypes": torch.float32,
        "devices": torch.device("cpu"),
        "tensors": plain,
        "integers": torch.tensor([0, 1, 2]),
        "complex": torch.randn(2, dtype=torch.cfloat),
        "scalars": torch.tensor(1.0),
        "empty": torch.empty(0),
        "sparse": plain.to_sparse(),
        "csr": plain.to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        "nested": torch.nested.nested_tensor([plain, plain[:2]]),
        "meta": torch.empty(4, 3, device="meta"),
        "lists of tensors": [plain] * 4,
        "lists with tensors": [plain, None, 3],
        "meshes": mesh,
        "placements": Shard(0),
        "lists of placements": [Replicate()],
        "bad placements": [Shard(7)],
        "dtensors": ts.distribute_tensor(plain, mesh, [Shard(0)]),
        "sharded": ShardedTensor.from_full(plain, spec),
        "specs": spec,
        "updates": sharded.RowSgd(0.1),
    }


def functions(mesh, things):
    """Everything in the package that takes arguments, by name."""
    x = things["dtensors"]
    found = {}
    for module in (ts, ts.sharded, ts.debug, ts.embedding, ts.placement_types):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and name != "World":
                found[name] = value
    for owner, names in (
        (ts.DTensor, ["from_local"]),
        (ts.World, ["simulate", "connect", "from_environment"]),
        (
            mesh,
            [
                "size",
                "get_coordinate",
                "get_local_rank",
                "contains",
                "__getitem__",
                "__eq__",
            ],
        ),
        (
            x,
            ["redistribute", "to_local", "full_tensor", "shards", "shard"],
        ),
        (Shard(0), ["is_shard", "is_replicate", "is_partial", "__eq__"]),
        (
            ts.MaskBuffer(),
            ["materialize_mask", "release_mask", "apply_mask"],
        ),
        (
            things["sharded"],
            [
                "size",
                "sharding_spec",
                "local_shards",
                "local_tensor",
                "dtensor",
                "requires_grad_",
                "from_full",
                "from_local_shards",
            ],
        ),
    ):
        for name in names:
            found[f"{type(owner).__name__}.{name}"] = getattr(owner, name)
    return found


def names_of(function):
    """What the arguments are called, and one that is not."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = [
            "tensor",
            "device_mesh",
            "placements",
            "shape",
            "dim",
            "mesh_dim_names",
            "run_check",
            "grad_placements",
            "weight",
            "mode",
            "timeout",
        ]
    return [*names, "nonsense"]


@pytest.mark.parametrize("seed", range(4))
def test_no_door_dumps_signatures(mesh, things, seed):
    draw = random.Random(seed)
    values = list(things.values())
    everything = functions(mesh, things)
    assert len(everything) > 50
    for name, function in everything.items():
        for _ in range(30):
            args = [draw.choice(values) for _ in range(draw.randrange(5))]
            kwargs = {
                draw.choice(names_of(function)): draw.choice(values)
                for _ in range(draw.choice([0, 0, 1, 2]))
            }
            check(function, *args, **kwargs)


def test_each_kind_as_each_argument(mesh, things):
    """One wrong argument among right ones."""
    plain = torch.randn(4, 3)
    spec, weight = things["specs"], things["sharded"]
    ids = [torch.tensor([0, 1])] * 4
    good = [
        (ts.distribute_tensor, [plain, mesh, [Shard(0)]]),
        (ts.DTensor.from_local, [plain, mesh, [Shard(0)]]),
        (ts.distribute_, [plain.clone(), mesh, [Shard(0)]]),
        (ts.init_device_mesh, ["cpu", (4,)]),
        (ts.DeviceMesh, ["cpu", [0, 1, 2, 3]]),
        (ts.zeros, [4, 3]),
        (ts.full, [(4, 3), 1.0]),
        (Shard, [0]),
        (ts.Partial, ["sum"]),
        (ShardedTensor.from_full, [plain, spec]),
        (ShardedTensor.from_local_shards, [[plain[:1]] * 4, (4, 3), spec]),
        (ChunkShardingSpec, [0, ["rank:0/cpu"]]),
        (sharded.RowSgd, [0.1]),
        (sharded.sharded_embedding, [ids, weight, 0, 1.0, 2.0, False, False]),
        (
            sharded.sharded_embedding_bag,
            [ids, weight, ids, None, 2.0, False, "sum", False, None, False],
        ),
        (ts.debug.explain, ["aten::mm", things["dtensors"]]),
        (ts.debug.sharding_text, [things["dtensors"]]),
        (things["dtensors"].redistribute, [mesh, [Replicate()]]),
        (things["dtensors"].shard, [0]),
    ]
    for function, args in good:
        for i in range(len(args)):
            for value in things.values():
                check(function, *args[:i], value, *args[i + 1 :])


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda m: ts.Shard("a"),
            TypeError,
            r"\[Shard\] expected an integer as 'dim', got 'a' \(str\)",
        ),
        (
            lambda m: ts.Shard(),
            TypeError,
            r"\[Shard\] argument 'dim' is missing: expected an integer",
        ),
        (
            lambda m: ts.Shard(0, 1),
            TypeError,
            r"\[Shard\] expected at most 1 arguments .*got 2.*dim",
        ),
        (
            lambda m: ts.Shard(dims=0),
            TypeError,
            r"\[Shard\] got no argument 'dims': its arguments are dim",
        ),
        (
            lambda m: ts.DTensor.from_local(torch.ones(1), m, placement=[]),
            TypeError,
            r"\[DTensor.from_local\] got no argument 'placement'",
        ),
        (
            lambda m: ts.distribute_tensor([1.0, 2.0], m),
            TypeError,
            r"distribute_tensor\] expected a tensor as 'tensor', got \[1.0, 2.0",
        ),
        (
            lambda m: ts.init_device_mesh(4, (4,)),
            TypeError,
            r"init_device_mesh\] expected a string as 'device_type', got 4",
        ),
        (
            lambda m: m.size("rows"),
            ValueError,
            "rows",
        ),
        (
            lambda m: m.size(1.5),
            TypeError,
            r"expected an integer as mesh_dim, got 1.5 \(float\)",
        ),
        (
            lambda m: ts.EmbeddingScope(max_norm="yes"),
            TypeError,
            r"\[EmbeddingScope\] expected True or False as 'max_norm'",
        ),
        (
            lambda m: ts.World.connect(0, 2, "localhost"),
            TypeError,
            r"\[World.connect\] argument 'port' is missing: expected an integer",
        ),
        (
            lambda m: ts.DTensor.from_local([torch.ones(1), 3], m),
            TypeError,
            r"expected a list of tensors as local_tensor, but element 1 is 3",
        ),
        (
            lambda m: ts.manual_seed("a"),
            TypeError,
            r"\[manual_seed\] expected an integer as 'seed'",
        ),
    ],
)
def test_the_sentence_says_which(mesh, call, error, text):
    with pytest.raises(error, match=text):
        call(mesh)


def wrapped_by_functorch(body):
    """Calls body with tensors that each of functorch's transforms wraps."""
    x = torch.randn(4, 3)
    torch.vmap(lambda t: [body(t), t][1])(x)
    torch.func.grad(lambda t: [body(t), t.sum()][1])(x)
    torch.func.functionalize(lambda t: [body(t), t][1])(x)


def test_wrapped_tensors_are_refused_by_name(mesh, things):
    spec = things["specs"]

    def refused(call):
        with pytest.raises((TypeError, NotImplementedError), match="functorch"):
            call()

    def body(t):
        refused(lambda: ts.distribute_tensor(t, mesh))
        refused(lambda: ts.distribute_(t, mesh))
        refused(lambda: ts.DTensor.from_local(t, mesh))
        refused(lambda: ts.DTensor.from_local([t] * 4, mesh))
        refused(lambda: ShardedTensor.from_full(t, spec))
        refused(lambda: ShardedTensor.from_local_shards([t] * 4, (16, 3), spec))

    wrapped_by_functorch(body)


def test_odd_tensors_are_refused_by_name(mesh, things):
    for kind, text in (
        ("quantized", "quantized"),
        ("nested", "nested"),
        ("sparse", "sparse"),
        ("csr", "sparse"),
    ):
        for call in (
            lambda t: ts.distribute_tensor(t, mesh),
            lambda t: ts.distribute_(t, mesh),
            lambda t: ts.DTensor.from_local(t, mesh),
            lambda t: ShardedTensor.from_full(t, things["specs"]),
        ):
            with pytest.raises(TypeError, match=text):
                call(things[kind])


def test_wrapped_tensors_at_every_door(mesh, things):
    def body(t):
        for function in functions(mesh, things).values():
            check(function, t)
            check(function, t, mesh)
            check(function, [t], mesh, [Shard(0)])
            check(function, [t], things["sharded"])

    wrapped_by_functorch(body)
