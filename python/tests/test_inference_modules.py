"""Modules and views in torch.inference_mode(), on tensors that were made in the
mode, outside it, and on parameters. test_inference_mode.py has the ops.

A file of its own: processes import it, and PyTorch's op database takes seconds.
"""

import copy

import torch
import torch.nn.functional as F
from both_worlds import in_both_worlds
from processes import RANKS
from torch import nn

import tessera as ts
from tessera import Replicate, Shard

MODULES = {
    "linear": (lambda: nn.Linear(6, 8), (4, 6)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), (4, 6)),
    "layer_norm": (lambda: nn.LayerNorm(6), (4, 6)),
    "rms_norm": (lambda: nn.RMSNorm(6), (4, 6)),
    "batch_norm": (lambda: nn.BatchNorm1d(6).eval(), (4, 6)),
    "dropout": (lambda: nn.Dropout(0.5).eval(), (4, 6)),
    "embedding": (lambda: nn.Embedding(9, 6), None),
    "embedding_bag": (lambda: nn.EmbeddingBag(9, 6, mode="sum"), None),
    "embedding_bag_max": (lambda: nn.EmbeddingBag(9, 6, mode="max"), None),
    "lstm": (lambda: nn.LSTM(6, 4, batch_first=True), (4, 5, 6)),
    "attention": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval(),
        (4, 5, 6),
    ),
}


def shard_rows(name, module, mesh):
    for key, parameter in list(module.named_parameters(recurse=False)):
        spread = ts.distribute_tensor(parameter, mesh, [Shard(0)])
        module.register_parameter(key, nn.Parameter(spread))


def first(result):
    return result[0] if isinstance(result, tuple) else result


def body_modules(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    for name, (make, shape) in MODULES.items():
        for partition in (None, shard_rows):
            for batch in (Replicate(), Shard(0)):
                if partition and name in ("lstm", "attention"):
                    continue  # their kernels take weights as a whole
                plain = make()
                module = ts.distribute_module(copy.deepcopy(plain), mesh, partition)
                outside = torch.randn(shape) if shape else torch.randint(0, 9, (4, 3))
                spread = ts.distribute_tensor(outside, mesh, [batch])
                with torch.inference_mode():
                    inside = outside.clone()
                    for value, x in (
                        (outside, spread),
                        (inside, ts.distribute_tensor(inside, mesh, [batch])),
                    ):
                        expected, found = first(plain(value)), first(module(x))
                        assert found.is_inference() == expected.is_inference(), name
                        torch.testing.assert_close(
                            found.full_tensor(), expected, msg=name
                        )


def body_views(here):
    """What a review saw refused: views of tensors that were made outside."""
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    value = torch.arange(12.0).view(4, 3)
    ids = torch.tensor([[0, 1], [3, 1]])
    calls = {
        "view": lambda a, i: a.view(12),
        "t": lambda a, i: a.t().mm(a),
        "take_along_dim": lambda a, i: a.take_along_dim(i[:, :1], 0),
        "embedding_bag": lambda a, i: F.embedding_bag(i, a, mode="sum"),
        "embedding": lambda a, i: F.embedding(i, a),
        "detach": lambda a, i: a.detach(),
        "slice": lambda a, i: a[1:3],
        "written": lambda a, i: a.clone().add_(1),
    }
    for layout in (Shard(0), Shard(1), Replicate()):
        for made in ("outside", "inside", "parameter"):
            with torch.inference_mode(made == "inside"):
                a = ts.distribute_tensor(value, mesh, [layout])
                i = ts.distribute_tensor(ids, mesh)
                if made == "parameter":
                    a = nn.Parameter(a)
                plain = nn.Parameter(value) if made == "parameter" else value.clone()
            with torch.inference_mode():
                for name, call in calls.items():
                    expected, found = call(plain, ids), call(a, i)
                    assert torch.equal(found.full_tensor(), expected), name
                    assert found.is_inference() == expected.is_inference(), name


test_simulated, test_processes = in_both_worlds(body_modules, body_views)
