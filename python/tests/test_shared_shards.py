"""What is handed out shares memory with a distributed tensor, and nothing else."""

import torch
from both_worlds import in_both_worlds

import tessera as ts


def _mesh():
    return ts.init_device_mesh("cpu", (4,))


def _changes():
    return [
        lambda t: t.unsqueeze_(0),
        lambda t: t.t_(),
        lambda t: t.requires_grad_(),
        # torch refuses it for those that require grad.
        lambda t: t if t.requires_grad else t.resize_(1),
        lambda t: setattr(t, "data", torch.zeros(1)),
        lambda t: setattr(t, "tag", 1),
    ]


def _check(x, value, hand_out):
    for change in _changes():
        before = [t.detach().clone() for t in hand_out()]
        for tensor in hand_out():
            with torch.no_grad():
                change(tensor)
        for tensor, was in zip(hand_out(), before, strict=True):
            assert torch.equal(tensor, was)
            assert tensor.requires_grad == x.requires_grad
        assert torch.equal((x.detach() * 1).full_tensor(), value)
        x.detach().view(2, 8)


def body_handed_out_shards(here):
    mesh = _mesh()
    value = torch.randn(4, 4)
    for placement in [ts.Replicate(), ts.Shard(0)]:
        for requires_grad in [False, True]:
            x = ts.distribute_tensor(value, mesh, [placement])
            x = x.detach().requires_grad_(requires_grad)
            _check(x, value, lambda: x.shards())  # noqa: B023
            if len(here) == 1:
                _check(x, value, lambda: [x.to_local()])  # noqa: B023
                _check(x, value, lambda: [x._local_tensor])  # noqa: B023
            if placement.is_replicate():
                _check(x, value, lambda: [x.full_tensor()])  # noqa: B023


def body_a_local_tensor_that_changes(here):
    mesh = _mesh()
    for change in _changes():
        locals_ = [torch.ones(2, 2) for _ in here]
        given = locals_ if len(here) > 1 else locals_[0]
        x = ts.DTensor.from_local(given, mesh, [ts.Shard(0)])
        for local in locals_:
            local.add_(1)
            with torch.no_grad():
                change(local)
        assert (x * 1).sum().item() == 32
        assert not (x * 1).requires_grad


def body_copied_views_show_their_base(here):
    mesh = _mesh()
    for guard in [torch.enable_grad, torch.no_grad, torch.inference_mode]:
        with guard():
            x = ts.distribute_tensor(torch.arange(8.0), mesh, [ts.Shard(0)])
            plain = torch.arange(8.0)
            view = x[0:3]
            for value, part in [(x, view), (plain, plain[0:3])]:
                value.add_(1)
                value.data.mul_(2)
                part.sub_(1)
                part[1:].data.mul_(3)
            assert torch.equal(view.full_tensor(), plain[0:3])
            assert torch.equal(x.full_tensor(), plain)
            assert "9., 15." in str(view)
            # Printing sends nothing: over processes it does not read.
            x.add_(1)
            assert view.reading_sends()
            assert ("10., 16." in str(view)) == (len(here) > 1)


def body_inference_mode(here):
    mesh = _mesh()
    value = torch.randn(3, 4)
    outside = ts.distribute_tensor(value, mesh, [ts.Shard(0)])
    parameter = torch.nn.Parameter(outside.clone())
    index = ts.distribute_tensor(torch.zeros(3, 4, dtype=torch.long), mesh)
    with torch.inference_mode():
        inside = ts.distribute_tensor(value, mesh, [ts.Shard(1)])
        plain_inside = value.clone()
        for call in [
            lambda x, i: x.view(12),
            lambda x, i: x.t().mm(x),
            lambda x, i: x.take_along_dim(i, 0),
            lambda x, i: torch.nn.functional.embedding_bag(i, x),
            lambda x, i: torch.nn.functional.embedding(i, x),
            lambda x, i: x[0:2],
            lambda x, i: x.detach(),
            lambda x, i: x * 2,
        ]:
            zeros = index.full_tensor()
            for x, plain in [
                (outside, value),
                (parameter, torch.nn.Parameter(value)),
                (inside, plain_inside),
            ]:
                result, expected = call(x, index), call(plain, zeros)
                assert result.is_inference() == expected.is_inference()
                assert torch.allclose(result.full_tensor(), expected)


def body_inference_mode_of_modules(here):
    mesh = _mesh()
    model = torch.nn.Sequential(
        torch.nn.Embedding(10, 8),
        torch.nn.Linear(8, 8),
        torch.nn.LayerNorm(8),
        torch.nn.GELU(),
        torch.nn.Linear(8, 4),
    )
    batch = torch.arange(8)
    with torch.inference_mode():
        expected = model(batch)
    ts.distribute_module(model, mesh)
    for inside in [False, True]:
        with torch.inference_mode(inside):
            ids = ts.distribute_tensor(batch, mesh, [ts.Shard(0)])
        with torch.inference_mode():
            result = model(ids)
            assert result.is_inference()
            assert torch.allclose(result.full_tensor(), expected, atol=1e-6)
    result = model(ts.distribute_tensor(batch, mesh, [ts.Shard(0)]))
    result.sum().backward()
    assert model[0].weight.grad is not None


test_simulated, test_processes = in_both_worlds(
    body_handed_out_shards,
    body_a_local_tensor_that_changes,
    body_copied_views_show_their_base,
    body_inference_mode,
    body_inference_mode_of_modules,
)
