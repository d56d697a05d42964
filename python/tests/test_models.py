"""A dozen models, unmodified: loss, gradients and buffers are one device's.

And what some of them send: a data-parallel ResNet, a tensor-parallel decoder.
"""

import warnings

import pytest
import torch
from torch import nn

import small_models
import tessera as ts
from tessera import Replicate, Shard
from tessera.debug import CommDebugMode
from transformers_models import LAYOUTS, difference, distributed, whole

RANKS = 4


def made(name):
    torch.manual_seed(0)
    make, inputs = small_models.MODELS[name]
    return make().double(), inputs()


def distribute_all(values, mesh, placement):
    return [ts.distribute_tensor(v, mesh, [placement]) for v in values]


@pytest.fixture
def mesh():
    with ts.simulate(RANKS):
        yield ts.init_device_mesh("cpu", (RANKS,))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", small_models.MODELS)
def test_equals_one_device(mesh, name, layout):
    plain, inputs = made(name)
    loss = plain(*inputs)
    loss.backward()
    placing, batch = LAYOUTS[layout]
    model = distributed(made(name)[0], mesh, placing)
    with warnings.catch_warnings(), ts.implicit_replication():
        warnings.simplefilter("ignore")
        actual = model(*distribute_all(inputs, mesh, batch))
        actual.backward()
    assert isinstance(actual, ts.DTensor)
    assert difference(actual, loss.detach()) is None
    for (key, ours), theirs in zip(model.named_parameters(), plain.parameters()):
        assert difference(ours.grad, theirs.grad) is None, key
        assert ours.grad.placements == ours.placements, key
    for (key, ours), theirs in zip(model.named_buffers(), plain.named_buffers()):
        torch.testing.assert_close(whole(ours), theirs[1], msg=key)


WORD = 8  # bytes of a double
RING = 2 * (RANKS - 1) / RANKS  # what a rank sends of an all-reduced byte


def sent(comm, *, without=()):
    return sum(r.bytes for r in comm.get_records() if r.op not in without)


def test_a_data_parallel_resnet_sends_gradients_and_statistics(mesh):
    model, inputs = made("resnet")
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    model = distributed(model, mesh, LAYOUTS["data parallel"][0])
    given = distribute_all(inputs, mesh, Shard(0))
    with ts.strict():
        with CommDebugMode() as forward:
            loss = model(*given)
        with CommDebugMode() as backward:
            loss.backward()
    # A mean and a variance a channel; besides, one number of the loss.
    channels = sum(norm.num_features for norm in norms)
    statistics = [r for r in forward.get_records() if "batch_norm" in r.op]
    assert {r.collective for r in statistics} == {"all_reduce"}
    assert sum(r.count for r in statistics) == 2 * len(norms)
    assert sum(r.bytes for r in statistics) == 2 * channels * WORD * RING
    others = [r for r in forward.get_records() if "batch_norm" not in r.op]
    assert {r.op for r in others} == {"aten::nll_loss_forward"}
    assert sum(r.bytes for r in others if r.collective == "all_reduce") == WORD * RING
    # Back go the sums of batch norm, which are the gradients of its weight and
    # bias, and every other gradient once.
    parameters = sum(p.numel() for p in model.parameters())
    assert {r.collective for r in backward.get_records()} == {"all_reduce"}
    assert sent(backward) == parameters * WORD * RING


@pytest.mark.parametrize("layers", [1, 2])
def test_a_tensor_parallel_decoder_sends_what_megatron_says(mesh, layers):
    """Two all-reduces of batch x length x size a layer, each way."""
    size, length = 16, 8
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        small_models.DecoderBlock(size, 4, 4, small_models.GatedMlp(size, 32))
        for _ in range(layers)
    ).double()
    columns = {"q", "k", "v", "gate", "up"}
    rows = {"out", "down"}
    for name, module in blocks.named_modules():
        leaf = name.rsplit(".", 1)[-1]
        dim = 0 if leaf in columns else 1 if leaf in rows else None
        where = Replicate() if dim is None else Shard(dim)
        for parameter in module.parameters(recurse=False):
            ts.distribute_(parameter, mesh, [where])
        if leaf in rows:
            module.register_forward_hook(
                lambda _, __, y: y.redistribute(mesh, [Replicate()])
            )
    x = torch.randn(small_models.BATCH, length, size, dtype=torch.float64)
    x = ts.distribute_tensor(x, mesh, [Replicate()]).requires_grad_()
    with ts.implicit_replication(), ts.strict():
        with CommDebugMode() as forward:
            y = x
            for block in blocks:
                y = block(y)
        with CommDebugMode() as backward:
            y.sum().backward()
    samples = small_models.BATCH * length
    formula = 2 * layers * samples * size * WORD * RING
    assert {r.collective for r in forward.get_records()} == {"all_reduce"}
    assert sent(forward) == formula
    # The norms stand before the sums: their gradients are pending, and sent.
    norms = 2 * layers * (size * RING + samples * RING / 2) * WORD
    assert sent(backward) == formula + norms


def sharded(mesh, dim, *sizes):
    value = torch.randn(*sizes, dtype=torch.float64)
    return ts.distribute_tensor(value, mesh, [Shard(dim)]).requires_grad_()


def replicated(mesh, *sizes):
    value = torch.randn(*sizes, dtype=torch.float64)
    return ts.distribute_tensor(value, mesh, [Replicate()])


F = nn.functional
SILENT = {
    "attention by batch": lambda m: F.scaled_dot_product_attention(
        *(sharded(m, 0, 4, 4, 5, 2) for _ in range(3)), is_causal=True
    ),
    "attention by head": lambda m: F.scaled_dot_product_attention(
        *(sharded(m, 1, 4, 4, 5, 2) for _ in range(3))
    ),
    "grouped heads": lambda m: F.scaled_dot_product_attention(
        sharded(m, 1, 4, 8, 5, 2),
        sharded(m, 1, 4, 4, 5, 2),
        sharded(m, 1, 4, 4, 5, 2),
        enable_gqa=True,
    ),
    "attention by rows of the query": lambda m: F.scaled_dot_product_attention(
        sharded(m, 2, 4, 4, 8, 2), replicated(m, 4, 4, 5, 2), replicated(m, 4, 4, 5, 2)
    ),
    "causal attention by rows of the query": lambda m: F.scaled_dot_product_attention(
        sharded(m, 2, 4, 4, 9, 2),
        replicated(m, 4, 4, 7, 2),
        replicated(m, 4, 4, 7, 2),
        is_causal=True,
    ),
    "causal grouped heads by rows of the query": lambda m: (
        F.scaled_dot_product_attention(
            sharded(m, 2, 4, 4, 8, 2),
            replicated(m, 4, 2, 8, 2),
            replicated(m, 4, 2, 8, 2),
            is_causal=True,
            enable_gqa=True,
        )
    ),
    "attention with a mask": lambda m: F.scaled_dot_product_attention(
        *(sharded(m, 0, 4, 4, 5, 2) for _ in range(3)), replicated(m, 5, 5)
    ),
    "convolution by batch": lambda m: F.conv2d(
        sharded(m, 0, 4, 4, 5, 5), replicated(m, 8, 4, 3, 3), replicated(m, 8)
    ),
    "convolution by output channel": lambda m: F.conv2d(
        replicated(m, 4, 4, 5, 5), sharded(m, 0, 8, 4, 3, 3), sharded(m, 0, 8)
    ),
    "convolution by input channel": lambda m: F.conv2d(
        sharded(m, 1, 4, 4, 5, 5), sharded(m, 1, 8, 4, 3, 3)
    ),
    "depthwise convolution by channel": lambda m: F.conv2d(
        sharded(m, 1, 4, 4, 5, 5), sharded(m, 0, 4, 1, 3, 3), groups=4
    ),
    "convolution by group": lambda m: F.conv2d(
        sharded(m, 1, 4, 16, 5, 5),
        sharded(m, 0, 8, 2, 3, 3),
        sharded(m, 0, 8),
        groups=8,
    ),
    "transposed convolution by group": lambda m: F.conv_transpose2d(
        sharded(m, 1, 4, 16, 5, 5),
        sharded(m, 0, 16, 3, 3, 3),
        sharded(m, 0, 24),
        stride=2,
        groups=8,
    ),
    "layer norm by batch": lambda m: F.layer_norm(
        sharded(m, 0, 8, 4), (4,), replicated(m, 4), replicated(m, 4)
    ),
    "group norm by batch": lambda m: F.group_norm(
        sharded(m, 0, 4, 4, 5), 2, replicated(m, 4), replicated(m, 4)
    ),
    "group norm by channel": lambda m: F.group_norm(
        sharded(m, 1, 3, 16, 5), 8, sharded(m, 0, 16), sharded(m, 0, 16)
    ),
    "batch norm by channel": lambda m: F.batch_norm(
        sharded(m, 1, 5, 8, 3), None, None, training=True
    ),
    "max pooling by channel": lambda m: F.max_pool2d(sharded(m, 1, 2, 4, 4, 4), 2),
    "transform of another dimension": lambda m: torch.fft.fft(sharded(m, 0, 4, 6)).abs(),
    "transform back": lambda m: torch.fft.irfft(torch.fft.rfft(sharded(m, 0, 4, 6))),
    "sorting rows": lambda m: sharded(m, 0, 4, 6).sort(1).values,
    "largest of a row": lambda m: sharded(m, 0, 4, 6).topk(2, 1).values,
    "circular padding": lambda m: F.pad(sharded(m, 0, 4, 2, 5), (2, 1), mode="circular"),
    "linear with the batch second": lambda m: F.linear(
        sharded(m, 1, 5, 4, 6), replicated(m, 3, 6), replicated(m, 3)
    ),
    "affine grid": lambda m: F.affine_grid(sharded(m, 0, 4, 2, 3), (4, 2, 3, 3)),
    "ctc loss": lambda m: F.ctc_loss(
        sharded(m, 1, 7, 4, 5),
        ts.distribute_tensor(torch.randint(1, 5, (4, 3)), m, [Shard(0)]),
        (7, 7, 6, 7),
        (3, 2, 3, 1),
        reduction="none",
    ),
    "least squares of a batch": lambda m: torch.linalg.lstsq(
        sharded(m, 0, 4, 5, 3), sharded(m, 0, 4, 5, 2)
    ).solution,
    "singular values of a batch": lambda m: torch.linalg.svdvals(sharded(m, 0, 4, 5, 3)),
    "inverses of a batch": lambda m: torch.linalg.inv(sharded(m, 0, 4, 3, 3)),
    "pseudo-inverses of a batch": lambda m: torch.linalg.pinv(sharded(m, 0, 4, 5, 3)),
    "solutions of a batch": lambda m: torch.linalg.solve(
        sharded(m, 0, 4, 3, 3), sharded(m, 0, 4, 3, 2)
    ),
    "solving a batch": lambda m: torch.linalg.solve_triangular(
        sharded(m, 0, 4, 3, 3), sharded(m, 0, 4, 3, 2), upper=True
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_layouts_that_need_no_communication_send_none(mesh, name):
    with ts.strict(), ts.explicit_communication(), CommDebugMode() as comm:
        result = SILENT[name](mesh)
        result.backward(torch.ones_like(result))
    # That a check of values went well is agreed on: a few bytes.
    sent = [
        r
        for r in comm.get_records()
        if r.op != "distribute_tensor" and r.collective != "agree"
    ]
    assert not sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_modules_on_a_sharded_batch_send_only_gradients(mesh, kind, dtype):
    module = getattr(nn, kind)(3, 2, num_layers=2, bidirectional=True, batch_first=True)
    value = torch.randn(4, 5, 3, dtype=dtype)
    expected, _ = module.to(dtype)(value)
    ts.distribute_module(module, mesh)
    batch = ts.distribute_tensor(value, mesh, [Shard(0)]).requires_grad_()
    with ts.strict(), CommDebugMode() as comm:
        result, _ = module(batch)
        result.backward(torch.ones_like(result))
        with torch.no_grad():
            module(batch)
    torch.testing.assert_close(result.full_tensor(), expected)
    assert result.placements == (Shard(0),)
    sent = [r for r in comm.get_records() if r.op != "distribute_tensor"]
    assert {r.collective for r in sent} == {"all_reduce"}, sent
    assert sum(r.count for r in sent) == len(list(module.parameters()))
