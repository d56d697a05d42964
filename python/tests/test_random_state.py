"""Random numbers are part of torch's generator state, in both worlds."""

import torch
from both_worlds import in_both_worlds
from processes import RANKS
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tessera as ts
from tessera import Replicate, Shard


def mesh_here():
    return ts.init_device_mesh("cpu", (RANKS,))


def value(x):
    return x.detach().full_tensor()


def body_checkpoint(here):
    """The mask of a checkpointed dropout is drawn a second time."""
    mesh = mesh_here()
    weight = torch.randn(6, 8)
    for placement in (Replicate(), Shard(0)):
        for reentrant in (False, True):

            def block(x):
                return F.dropout(torch.tanh(x), 0.5) * x

            grads = []
            for run in (
                block,
                lambda x: checkpoint(block, x, use_reentrant=reentrant),
            ):
                torch.manual_seed(3)
                x = ts.distribute_tensor(weight, mesh, [placement])
                x.requires_grad_()
                y = run(x * 1)
                torch.rand(5)  # other draws come between
                F.dropout(y.detach(), 0.2)
                y.pow(2).sum().backward()
                grads.append(value(x.grad))
            assert torch.equal(*grads)
            assert grads[0].eq(0).any() and grads[0].ne(0).any()


def body_states(here):
    x = ts.zeros(6, 4, device_mesh=mesh_here(), placements=[Shard(0)])
    state = torch.get_rng_state()
    first = value(torch.rand_like(x))
    second = value(torch.rand_like(x))
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(value(torch.rand_like(x)), first)
    with torch.random.fork_rng():
        assert torch.equal(value(torch.rand_like(x)), second)
    assert torch.equal(value(torch.rand_like(x)), second)
    for seed in (torch.manual_seed, ts.manual_seed):
        seed(9)
        drawn = value(torch.randn_like(x))
        torch.manual_seed(9)
        assert torch.equal(value(torch.randn_like(x)), drawn)


def body_generators(here):
    x = ts.zeros(6, 4, device_mesh=mesh_here(), placements=[Shard(1)])

    def drawn(seed):
        generator = torch.Generator().manual_seed(seed)
        torch.nn.init.normal_(x, generator=generator)
        return value(x) + value(torch.bernoulli(x.sigmoid(), generator=generator))

    before = torch.get_rng_state()
    assert torch.equal(drawn(4), drawn(4))
    assert not torch.equal(drawn(4), drawn(5))
    assert torch.equal(torch.get_rng_state(), before)


def body_resumed(here):
    """A run that is resumed from a saved state draws on as the other did."""
    mesh = mesh_here()

    def steps(weight, count):
        for _ in range(count):
            with torch.no_grad():
                weight.add_(F.dropout(torch.ones_like(weight), 0.3))
                weight.mul_(torch.rand_like(weight))

    torch.manual_seed(1)
    weight = ts.rand(5, 3, device_mesh=mesh, placements=[Shard(0)])
    steps(weight, 2)
    saved = {"weight": weight.clone(), "rng": torch.get_rng_state()}
    steps(weight, 3)
    torch.manual_seed(77)
    steps(saved["weight"], 0)
    torch.set_rng_state(saved["rng"])
    steps(saved["weight"], 3)
    assert torch.equal(value(saved["weight"]), value(weight))


test_simulated, test_processes = in_both_worlds(
    body_checkpoint, body_states, body_generators, body_resumed
)
