"""Gradients come in the layout of their parameter, however that was made."""

import copy
import io

import torch
import torch.utils.checkpoint
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


def registered(parameter, expect):
    parameter.register_hook(expect)


def registered_twice(parameter, expect):
    parameter.register_hook(expect)
    parameter.register_hook(expect)


def taken_away(parameter, expect):
    parameter.register_hook(expect).remove()


def one_of_two_taken_away(parameter, expect):
    handle = parameter.register_hook(expect)
    parameter.register_hook(expect)
    handle.remove()


def set_to_none(parameter, expect):
    parameter._backward_hooks = None


def set_to_none_and_registered(parameter, expect):
    parameter._backward_hooks = None
    parameter.register_hook(expect)


def multi_grad(parameter, expect):
    torch.autograd.graph.register_multi_grad_hook(
        [parameter], lambda grads: expect(grads[0])
    )


def multi_grad_any(parameter, expect):
    torch.autograd.graph.register_multi_grad_hook(
        [parameter], expect, mode="any"
    )


def accumulated(parameter, expect):
    parameter.register_post_accumulate_grad_hook(lambda p: expect(p.grad))


def of_a_hook_of_the_result(parameter, expect):
    """Registered while the backward pass runs."""
    # The hook runs before the gradient of the parameter is worked out.
    expect.result.register_hook(lambda grad: registered(parameter, expect) or grad)


CHANGES = (
    registered,
    registered_twice,
    taken_away,
    one_of_two_taken_away,
    set_to_none,
    set_to_none_and_registered,
    multi_grad,
    multi_grad_any,
    accumulated,
    of_a_hook_of_the_result,
)


class Expect:
    """A hook that looks at its gradient."""

    def __init__(self, parameter, value):
        self.parameter = parameter
        self.value = value
        self.result = None

    def __call__(self, grad):
        assert grad.placements == self.parameter.placements
        # Not a part of it: over processes this is what an optimizer takes.
        assert all(shard.equal(self.value) for shard in grad.shards())


def body_hooks_after_the_forward_pass(here):
    mesh = mesh_here()
    x = ts.ones(8, 4, device_mesh=mesh, placements=[Shard(0)])
    value = torch.full((4, 3), 8.0)
    for change in CHANGES:
        # torch does not call hooks of several tensors where one is captured.
        for captured in (False, True) if change is not multi_grad else (False,):
            weight = nn.Parameter(ts.zeros(4, 3, device_mesh=mesh))
            expect = Expect(weight, value)
            for _ in range(2):
                expect.result = x @ weight
                loss = expect.result.sum()
                change(weight, expect)
                if captured:
                    (grad,) = torch.autograd.grad(loss, weight)
                else:
                    weight.grad = None
                    loss.backward()
                    grad = weight.grad
                expect(grad)


def body_hooks_before_a_reentrant_forward(here):
    """The leaf is used under no_grad first, with gradients in the backward pass."""
    mesh = mesh_here()
    x = ts.ones(8, 4, device_mesh=mesh, placements=[Shard(0)])
    weight = nn.Parameter(ts.zeros(4, 3, device_mesh=mesh))
    y = torch.utils.checkpoint.checkpoint(
        lambda a: a @ weight, x.requires_grad_(), use_reentrant=True
    )
    weight._backward_hooks = None
    y.sum().backward()
    Expect(weight, torch.full((4, 3), 8.0))(weight.grad)


def body_saved_tensors_hooks(here):
    """A leaf that is unpacked is a tensor of its own, which soon dies."""
    mesh = mesh_here()
    x = ts.ones(8, 4, device_mesh=mesh, placements=[Shard(0)])
    for _ in range(20):
        a = nn.Parameter(ts.ones(4, 4, device_mesh=mesh))
        b = nn.Parameter(ts.ones(4, 3, device_mesh=mesh))
        same = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
        with same:
            loss = ((x @ a) @ b).sum()
        loss.backward()
        Expect(a, torch.full((4, 4), 24.0))(a.grad)
        Expect(b, torch.full((4, 3), 32.0))(b.grad)


test_simulated, test_processes = in_both_worlds(
    body_copies_cost_what_the_model_costs,
    body_undefined_gradients,
    body_hooks_after_the_forward_pass,
    body_hooks_before_a_reentrant_forward,
    body_saved_tensors_hooks,
)
