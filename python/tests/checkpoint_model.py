"""A model, its data and its training, for the tests of checkpoints."""

import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from processes import RANKS
from torch import nn

import tessera as ts
from tessera import Replicate


class Directory:
    """A directory of its own, the same on every rank."""

    def __init__(self, here):
        self.leads = 0 in here
        self.alone = len(here) == RANKS
        path = [tempfile.mkdtemp()] if self.leads else [None]
        if not self.alone:
            dist.broadcast_object_list(path, src=0)
        self.path = path[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        if self.leads:
            shutil.rmtree(self.path)

    def wait(self):
        if not self.alone:
            dist.barrier()

    def __truediv__(self, name):
        return os.path.join(self.path, name)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(8, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, ids):
        self.count += 1
        return self.linear(self.dropout(self.table(ids)))


def mesh_of(*shape):
    return ts.init_device_mesh("cpu", shape or (RANKS,))


def sharded(mesh, placement, model=None):
    def shard(name, module, mesh):
        if name in ("table", "linear"):
            ts.distribute_(module.weight, mesh, [placement] * mesh.ndim)

    return ts.distribute_module(model or Model(), mesh, shard)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, ts.DTensor) else tensor


def full_state(model):
    return {k: whole(v).clone() for k, v in model.state_dict().items()}


def same(state, expected):
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(whole(state[key]), whole(value)), key


class Batches:
    """A data loader with a position."""

    def __init__(self):
        self.position = 0

    def next(self, mesh):
        self.position += 1
        ids = (torch.arange(6) + self.position) % 11
        return ts.distribute_tensor(ids, mesh, [Replicate()] * mesh.ndim)

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def make(mesh, placement, kind, seed):
    torch.manual_seed(seed)
    model = sharded(mesh, placement)
    optimizer = kind(model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "batches": Batches(),
        "best": 0.0,
    }


def train(state, mesh, steps):
    losses = []
    for _ in range(steps):
        state["optimizer"].zero_grad()
        loss = state["model"](state["batches"].next(mesh)).square().mean()
        loss.backward()
        state["optimizer"].step()
        state["scheduler"].step()
        losses.append(loss.full_tensor().item())
        state["best"] = losses[-1]
    return losses


KINDS = [
    lambda m: torch.optim.AdamW(m.parameters(), lr=0.1, amsgrad=True),
    lambda m: torch.optim.Adam(
        [{"params": m.table.parameters(), "lr": 0.3},
         {"params": m.linear.parameters()}],
        lr=0.1,
        foreach=True,
    ),
    lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1),
]
