"""In a backward pass a user's plain tensors are refused as they are outside."""

import pytest
import torch
from both_worlds import in_both_worlds
from processes import RANKS
from torch import nn
from torch.utils.checkpoint import checkpoint

import tessera as ts
from tessera import Replicate


def leaf(*shape):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    return ts.rand(*shape, device_mesh=mesh).requires_grad_()


def mixes(grad):
    return grad + torch.randn(grad.shape)


def refused():
    return pytest.raises(RuntimeError, match="is a plain tensor")


class Mixes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return mixes(grad)


def body_tensor_hooks(here):
    x = leaf(4)
    x.register_hook(mixes)
    with refused():
        (x * 2).sum().backward()
    x = leaf(4)
    y = x.exp()
    y.retain_grad()
    y.register_hook(mixes)
    with refused():
        y.sum().backward()


def body_node_hooks(here):
    y = leaf(4).exp()
    y.grad_fn.register_prehook(lambda grads: (mixes(grads[0]),))
    with refused():
        y.sum().backward()
    y = leaf(4).exp()
    y.grad_fn.register_hook(lambda inputs, grads: (mixes(inputs[0]),))
    with refused():
        y.sum().backward()


def body_post_accumulate_hooks(here):
    x = leaf(4)
    x.register_post_accumulate_grad_hook(lambda t: mixes(t.grad))
    with refused():
        (x * 2).sum().backward()


def body_functions(here):
    with refused():
        Mixes.apply(leaf(4)).sum().backward()
    with ts.implicit_replication():
        Mixes.apply(leaf(4)).sum().backward()


def body_module_hooks(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    linear = ts.distribute_module(nn.Linear(4, 4), mesh)
    linear.register_full_backward_hook(
        lambda module, inputs, outputs: (mixes(inputs[0]),)
    )
    with refused():
        linear(leaf(2, 4)).sum().backward()


def body_formulas(here):
    """Formulas may make plain tensors of their own, hooks or not."""
    for hook in (False, True):
        for value in (
            lambda x: x.split(2, 1)[1],
            lambda x: x.max(0).values,
            lambda x: x.unbind(0)[1],
        ):
            x = leaf(4, 6)
            plain = x.detach().full_tensor().requires_grad_()
            for tensor in (x, plain):
                y = value(tensor)
                if hook:
                    y.register_hook(lambda grad: grad * 2)
                y.square().sum().backward()
            torch.testing.assert_close(x.grad.full_tensor(), plain.grad)


def body_checkpoint_and_anomaly(here):
    x = leaf(4, 6)
    for reentrant in (False, True):
        x.grad = None
        y = checkpoint(
            lambda t: t.split(2, 1)[1].exp(), x * 1, use_reentrant=reentrant
        )
        y.sum().backward()
        assert x.grad.placements == (Replicate(),)
    with torch.autograd.detect_anomaly(check_nan=False):
        x.max(0).values.sum().backward()


test_simulated, test_processes = in_both_worlds(
    body_tensor_hooks,
    body_node_hooks,
    body_post_accumulate_hooks,
    body_functions,
    body_module_hooks,
    body_formulas,
    body_checkpoint_and_anomaly,
)
