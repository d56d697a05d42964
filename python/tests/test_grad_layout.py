"""Gradients come in the layout of their parameter, however that was made."""

import copy
import io

import torch
from both_worlds import in_both_worlds
from processes import RANKS
from torch import nn

import tessera as ts
from tessera import Replicate, Shard
from tessera.debug import CommDebugMode


def mesh_here():
    return ts.init_device_mesh("cpu", (RANKS,))


def model_on(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
    )
    return ts.distribute_module(model, mesh)


def deep_copied(model):
    return copy.deepcopy(model)


def used_and_copied(model):
    model(ts.ones(4, 4, device_mesh=mesh_here())).sum().backward()
    return copy.deepcopy(model)


def saved_and_loaded(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def assigned(model):
    other = model_on(mesh_here())
    other.load_state_dict(
        {name: t.clone() for name, t in model.state_dict().items()}, assign=True
    )
    return other


def made_anew(model):
    """What users write in a partition_fn, without distribute_module."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    return model


def hooked(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad * 1)
    return model


def trained(model, mesh):
    """Losses and the collectives of three steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = ts.distribute_tensor(
        torch.arange(32.0).view(8, 4).sin(), mesh, [Shard(0)]
    )
    losses = []
    with CommDebugMode() as comm:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    for parameter in model.parameters():
        assert parameter.grad.placements == parameter.placements
    return [loss.item() for loss in losses], comm.get_total_counts()


def body_copies_cost_what_the_model_costs(here):
    mesh = mesh_here()
    losses, counts = trained(model_on(mesh), mesh)
    for copied in (
        deep_copied,
        used_and_copied,
        saved_and_loaded,
        assigned,
        made_anew,
        hooked,
    ):
        got = trained(copied(model_on(mesh)), mesh)
        assert got == (losses, counts), copied.__name__


def body_undefined_gradients(here):
    class Ignores(torch.autograd.Function):
        @staticmethod
        def forward(ctx, ignored, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return None, grad * 2

    mesh = mesh_here()
    ignored = nn.Parameter(ts.ones(3, device_mesh=mesh))
    x = nn.Parameter(ts.ones(3, device_mesh=mesh))
    Ignores.apply(ignored, x).sum().backward()
    assert ignored.grad is None
    assert x.grad.placements == (Replicate(),)


test_simulated, test_processes = in_both_worlds(
    body_copies_cost_what_the_model_costs, body_undefined_gradients
)
