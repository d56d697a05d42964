"""Every module of torch.nn, in every sharding, against one device.

The table names each module that torch exports; a module that torch gains and
the table lacks fails a test.
"""

import copy
import inspect
import warnings

import pytest
import torch
from torch import nn

import tessera as ts
from tessera import Replicate, Shard

RANKS = 4


def x(*sizes):
    return torch.randn(*sizes, dtype=torch.float64)


def positive(*sizes):
    return torch.rand(*sizes, dtype=torch.float64) + 0.1


def classes(count, *sizes):
    return torch.randint(0, count, sizes)


def signs(*sizes):
    return torch.randint(0, 2, sizes) * 2 - 1


class Case:
    """A module and its inputs; the batch is dimension `batch` of each."""

    def __init__(self, make, *inputs, batch=0, random=False):
        self.make = make
        self.inputs = inputs
        self.batch = batch
        self.random = random  # in training, or "always"


def elementwise(make):
    return Case(make, lambda: (x(5, 4),))


def image(make, *sizes):
    return Case(make, lambda: (x(*sizes),))


def loss(make, *inputs):
    return Case(make, lambda: tuple(f() for f in inputs))


def case(make, *inputs, **options):
    return Case(make, lambda: tuple(f() for f in inputs), **options)


def lazy(make, value):
    """A lazy module gets its parameters from a first call on one device."""

    def made():
        module = make().double()
        module(value())
        return module

    return Case(made, lambda: (value(),))


class Held(nn.Module):
    """A container of modules or of parameters, put to use."""

    def __init__(self, held, use):
        super().__init__()
        self.held = held
        self.use = use

    def forward(self, value):
        return self.use(self.held, value)


def parameter(*sizes):
    return nn.Parameter(x(*sizes))


PAIR = (lambda: x(5, 4), lambda: x(5, 4))
MODULES = {
    # Elementwise.
    "CELU": elementwise(nn.CELU),
    "ELU": elementwise(nn.ELU),
    "GELU": elementwise(nn.GELU),
    "GLU": elementwise(nn.GLU),
    "Hardshrink": elementwise(nn.Hardshrink),
    "Hardsigmoid": elementwise(nn.Hardsigmoid),
    "Hardswish": elementwise(nn.Hardswish),
    "Hardtanh": elementwise(nn.Hardtanh),
    "Identity": elementwise(nn.Identity),
    "LeakyReLU": elementwise(nn.LeakyReLU),
    "LogSigmoid": elementwise(nn.LogSigmoid),
    "LogSoftmax": elementwise(lambda: nn.LogSoftmax(1)),
    "Mish": elementwise(nn.Mish),
    "PReLU": elementwise(lambda: nn.PReLU(4)),
    "RReLU": case(nn.RReLU, lambda: x(5, 4), random=True),
    "ReLU": elementwise(nn.ReLU),
    "ReLU6": elementwise(nn.ReLU6),
    "SELU": elementwise(nn.SELU),
    "SiLU": elementwise(nn.SiLU),
    "Sigmoid": elementwise(nn.Sigmoid),
    "Softmax": elementwise(lambda: nn.Softmax(1)),
    "Softmax2d": image(nn.Softmax2d, 5, 4, 3, 3),
    "Softmin": elementwise(lambda: nn.Softmin(1)),
    "Softplus": elementwise(nn.Softplus),
    "Softshrink": elementwise(nn.Softshrink),
    "Softsign": elementwise(nn.Softsign),
    "Tanh": elementwise(nn.Tanh),
    "Tanhshrink": elementwise(nn.Tanhshrink),
    "Threshold": elementwise(lambda: nn.Threshold(0.1, 2.0)),
    # Random.
    "AlphaDropout": case(nn.AlphaDropout, lambda: x(5, 4), random=True),
    "Dropout": case(nn.Dropout, lambda: x(5, 4), random=True),
    "Dropout1d": case(nn.Dropout1d, lambda: x(5, 4, 3), random=True),
    "Dropout2d": case(nn.Dropout2d, lambda: x(5, 4, 3, 3), random=True),
    "Dropout3d": case(nn.Dropout3d, lambda: x(5, 4, 2, 2, 2), random=True),
    "FeatureAlphaDropout": case(
        nn.FeatureAlphaDropout, lambda: x(5, 4, 3), random=True
    ),
    # Matrices.
    "Bilinear": case(lambda: nn.Bilinear(4, 3, 5), lambda: x(6, 4), lambda: x(6, 3)),
    "CosineSimilarity": case(nn.CosineSimilarity, *PAIR),
    "Flatten": image(nn.Flatten, 5, 4, 3),
    "Linear": elementwise(lambda: nn.Linear(4, 6)),
    "NonDynamicallyQuantizableLinear": elementwise(
        lambda: nn.modules.linear.NonDynamicallyQuantizableLinear(4, 6)
    ),
    "PairwiseDistance": case(nn.PairwiseDistance, *PAIR),
    "Unflatten": elementwise(lambda: nn.Unflatten(1, (2, 2))),
    # Convolutions.
    "Conv1d": image(lambda: nn.Conv1d(4, 6, 3, padding=1), 5, 4, 6),
    "Conv2d": image(lambda: nn.Conv2d(4, 6, 3, stride=2), 5, 4, 6, 6),
    "Conv3d": image(lambda: nn.Conv3d(4, 6, 2, groups=2), 5, 4, 3, 3, 3),
    "ConvTranspose1d": image(lambda: nn.ConvTranspose1d(4, 6, 3), 5, 4, 6),
    "ConvTranspose2d": image(lambda: nn.ConvTranspose2d(4, 6, 3, 2), 5, 4, 3, 3),
    "ConvTranspose3d": image(lambda: nn.ConvTranspose3d(4, 6, 2), 5, 4, 2, 2, 2),
    "Fold": image(lambda: nn.Fold((4, 4), 2), 5, 16, 9),
    "Unfold": image(lambda: nn.Unfold(2), 5, 4, 4, 4),
    # Pooling.
    "AdaptiveAvgPool1d": image(lambda: nn.AdaptiveAvgPool1d(2), 5, 4, 6),
    "AdaptiveAvgPool2d": image(lambda: nn.AdaptiveAvgPool2d(2), 5, 4, 5, 5),
    "AdaptiveAvgPool3d": image(lambda: nn.AdaptiveAvgPool3d(2), 5, 4, 3, 3, 3),
    "AdaptiveMaxPool1d": image(lambda: nn.AdaptiveMaxPool1d(2), 5, 4, 6),
    "AdaptiveMaxPool2d": image(lambda: nn.AdaptiveMaxPool2d(2), 5, 4, 5, 5),
    "AdaptiveMaxPool3d": image(lambda: nn.AdaptiveMaxPool3d(2), 5, 4, 3, 3, 3),
    "AvgPool1d": image(lambda: nn.AvgPool1d(2), 5, 4, 6),
    "AvgPool2d": image(lambda: nn.AvgPool2d(2), 5, 4, 6, 6),
    "AvgPool3d": image(lambda: nn.AvgPool3d(2), 5, 4, 4, 4, 4),
    "FractionalMaxPool2d": case(
        lambda: nn.FractionalMaxPool2d(2, 3), lambda: x(5, 4, 6, 6), random="always"
    ),
    "FractionalMaxPool3d": case(
        lambda: nn.FractionalMaxPool3d(2, 2), lambda: x(5, 4, 4, 4, 4), random="always"
    ),
    "LPPool1d": case(lambda: nn.LPPool1d(2, 2), lambda: positive(5, 4, 6)),
    "LPPool2d": case(lambda: nn.LPPool2d(2, 2), lambda: positive(5, 4, 6, 6)),
    "LPPool3d": case(lambda: nn.LPPool3d(2, 2), lambda: positive(5, 4, 4, 4, 4)),
    "MaxPool1d": image(lambda: nn.MaxPool1d(2), 5, 4, 6),
    "MaxPool2d": image(lambda: nn.MaxPool2d(2), 5, 4, 6, 6),
    "MaxPool3d": image(lambda: nn.MaxPool3d(2), 5, 4, 4, 4, 4),
    "MaxUnpool1d": case(
        lambda: nn.MaxUnpool1d(2),
        lambda: x(5, 4, 3),
        lambda: torch.arange(3).mul(2).expand(5, 4, 3).contiguous(),
    ),
    "MaxUnpool2d": case(
        lambda: nn.MaxUnpool2d(2),
        lambda: x(5, 4, 2, 2),
        lambda: torch.arange(4).mul(3).view(2, 2).expand(5, 4, 2, 2).contiguous(),
    ),
    "MaxUnpool3d": case(
        lambda: nn.MaxUnpool3d(2),
        lambda: x(5, 4, 2, 2, 2),
        lambda: torch.arange(8).mul(7).view(2, 2, 2).expand(5, 4, 2, 2, 2).contiguous(),
    ),
    # Padding and sampling.
    "ChannelShuffle": image(lambda: nn.ChannelShuffle(2), 5, 4, 3, 3),
    "CircularPad1d": image(lambda: nn.CircularPad1d(1), 5, 4, 4),
    "CircularPad2d": image(lambda: nn.CircularPad2d(1), 5, 4, 4, 4),
    "CircularPad3d": image(lambda: nn.CircularPad3d(1), 5, 4, 3, 3, 3),
    "ConstantPad1d": image(lambda: nn.ConstantPad1d(1, 0.5), 5, 4, 4),
    "ConstantPad2d": image(lambda: nn.ConstantPad2d(1, 0.5), 5, 4, 4, 4),
    "ConstantPad3d": image(lambda: nn.ConstantPad3d(1, 0.5), 5, 4, 3, 3, 3),
    "PixelShuffle": image(lambda: nn.PixelShuffle(2), 5, 8, 3, 3),
    "PixelUnshuffle": image(lambda: nn.PixelUnshuffle(2), 5, 2, 4, 4),
    "ReflectionPad1d": image(lambda: nn.ReflectionPad1d(1), 5, 4, 4),
    "ReflectionPad2d": image(lambda: nn.ReflectionPad2d(1), 5, 4, 4, 4),
    "ReflectionPad3d": image(lambda: nn.ReflectionPad3d(1), 5, 4, 3, 3, 3),
    "ReplicationPad1d": image(lambda: nn.ReplicationPad1d(1), 5, 4, 4),
    "ReplicationPad2d": image(lambda: nn.ReplicationPad2d(1), 5, 4, 4, 4),
    "ReplicationPad3d": image(lambda: nn.ReplicationPad3d(1), 5, 4, 3, 3, 3),
    "Upsample": image(
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 5, 4, 3, 3
    ),
    "UpsamplingBilinear2d": image(lambda: nn.UpsamplingBilinear2d(5), 5, 4, 3, 3),
    "UpsamplingNearest2d": image(lambda: nn.UpsamplingNearest2d(6), 5, 4, 3, 3),
    "ZeroPad1d": image(lambda: nn.ZeroPad1d(1), 5, 4, 4),
    "ZeroPad2d": image(lambda: nn.ZeroPad2d(1), 5, 4, 4, 4),
    "ZeroPad3d": image(lambda: nn.ZeroPad3d(1), 5, 4, 3, 3, 3),
    # Norms.
    "BatchNorm1d": image(lambda: nn.BatchNorm1d(4), 5, 4, 6),
    "BatchNorm2d": image(lambda: nn.BatchNorm2d(4), 5, 4, 3, 3),
    "BatchNorm3d": image(lambda: nn.BatchNorm3d(4), 5, 4, 2, 2, 2),
    "CrossMapLRN2d": None,  # a Function in Python, deprecated since LocalResponseNorm
    "GroupNorm": image(lambda: nn.GroupNorm(2, 4), 5, 4, 3),
    "InstanceNorm1d": image(lambda: nn.InstanceNorm1d(4, affine=True), 5, 4, 6),
    "InstanceNorm2d": image(
        lambda: nn.InstanceNorm2d(4, track_running_stats=True), 5, 4, 3, 3
    ),
    "InstanceNorm3d": image(lambda: nn.InstanceNorm3d(4), 5, 4, 2, 2, 2),
    "LayerNorm": elementwise(lambda: nn.LayerNorm(4)),
    "LocalResponseNorm": image(lambda: nn.LocalResponseNorm(2), 5, 4, 3),
    "RMSNorm": elementwise(lambda: nn.RMSNorm(4)),
    "SyncBatchNorm": None,  # refuses tensors on CPUs
    # Lookups.
    "Embedding": case(lambda: nn.Embedding(7, 4), lambda: classes(7, 5, 3)),
    "EmbeddingBag": case(
        lambda: nn.EmbeddingBag(7, 4, mode="sum"), lambda: classes(7, 5, 3)
    ),
    # Recurrent.
    "GRU": case(lambda: nn.GRU(4, 6, batch_first=True), lambda: x(5, 3, 4)),
    "GRUCell": case(lambda: nn.GRUCell(4, 6), lambda: x(5, 4)),
    "LSTM": case(lambda: nn.LSTM(4, 6, batch_first=True), lambda: x(5, 3, 4)),
    "LSTMCell": case(lambda: nn.LSTMCell(4, 6), lambda: x(5, 4)),
    "RNN": case(lambda: nn.RNN(4, 6, batch_first=True), lambda: x(5, 3, 4)),
    "RNNBase": None,  # has no forward
    "RNNCell": case(lambda: nn.RNNCell(4, 6), lambda: x(5, 4)),
    "RNNCellBase": None,  # has no forward
    # Transformers.
    "MultiheadAttention": case(
        lambda: nn.MultiheadAttention(8, 4, batch_first=True),
        lambda: x(4, 3, 8),
        lambda: x(4, 5, 8),
        lambda: x(4, 5, 8),
    ),
    "Transformer": case(
        lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
        lambda: x(4, 3, 8),
        lambda: x(4, 5, 8),
    ),
    "TransformerDecoder": case(
        lambda: nn.TransformerDecoder(
            nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 1
        ),
        lambda: x(4, 3, 8),
        lambda: x(4, 5, 8),
    ),
    "TransformerDecoderLayer": case(
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
        lambda: x(4, 3, 8),
        lambda: x(4, 5, 8),
    ),
    "TransformerEncoder": case(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1
        ),
        lambda: x(4, 3, 8),
    ),
    "TransformerEncoderLayer": case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        lambda: x(4, 3, 8),
    ),
    # Losses.
    "AdaptiveLogSoftmaxWithLoss": case(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 8]),
        lambda: x(6, 8),
        lambda: classes(12, 6),
    ),
    "BCELoss": loss(
        nn.BCELoss, lambda: torch.rand(5, 4).double(), lambda: torch.rand(5, 4).double()
    ),
    "BCEWithLogitsLoss": loss(
        nn.BCEWithLogitsLoss, lambda: x(5, 4), lambda: torch.rand(5, 4).double()
    ),
    "CTCLoss": case(
        nn.CTCLoss,
        lambda: x(6, 4, 5).log_softmax(2),
        lambda: classes(4, 4, 3) + 1,
        lambda: torch.full((4,), 6),
        lambda: torch.tensor([3, 2, 3, 1]),
        batch=None,
    ),
    "CosineEmbeddingLoss": loss(nn.CosineEmbeddingLoss, *PAIR, lambda: signs(5)),
    "CrossEntropyLoss": loss(
        lambda: nn.CrossEntropyLoss(positive(4), label_smoothing=0.1),
        lambda: x(5, 4),
        lambda: classes(4, 5),
    ),
    "GaussianNLLLoss": loss(nn.GaussianNLLLoss, *PAIR, lambda: positive(5, 4)),
    "HingeEmbeddingLoss": loss(
        nn.HingeEmbeddingLoss, lambda: x(5, 4), lambda: signs(5, 4)
    ),
    "HuberLoss": loss(nn.HuberLoss, *PAIR),
    "KLDivLoss": loss(
        lambda: nn.KLDivLoss(reduction="batchmean"),
        lambda: x(5, 4),
        lambda: positive(5, 4),
    ),
    "L1Loss": loss(nn.L1Loss, *PAIR),
    "LinearCrossEntropyLoss": loss(
        lambda: nn.LinearCrossEntropyLoss(4, 6), lambda: x(5, 4), lambda: classes(6, 5)
    ),
    "MSELoss": loss(nn.MSELoss, *PAIR),
    "MarginRankingLoss": loss(
        nn.MarginRankingLoss, lambda: x(5), lambda: x(5), lambda: signs(5)
    ),
    "MultiLabelMarginLoss": loss(
        nn.MultiLabelMarginLoss, lambda: x(5, 4), lambda: classes(4, 5, 4)
    ),
    "MultiLabelSoftMarginLoss": loss(
        nn.MultiLabelSoftMarginLoss, lambda: x(5, 4), lambda: classes(2, 5, 4)
    ),
    "MultiMarginLoss": loss(nn.MultiMarginLoss, lambda: x(5, 4), lambda: classes(4, 5)),
    "NLLLoss": loss(nn.NLLLoss, lambda: x(5, 4), lambda: classes(4, 5)),
    "NLLLoss2d": loss(
        nn.NLLLoss2d, lambda: x(5, 4, 2, 3), lambda: classes(4, 5, 2, 3)
    ),
    "PoissonNLLLoss": loss(nn.PoissonNLLLoss, lambda: x(5, 4), lambda: positive(5, 4)),
    "SmoothL1Loss": loss(nn.SmoothL1Loss, *PAIR),
    "SoftMarginLoss": loss(nn.SoftMarginLoss, lambda: x(5, 4), lambda: signs(5, 4)),
    "TripletMarginLoss": loss(nn.TripletMarginLoss, *PAIR, lambda: x(5, 4)),
    "TripletMarginWithDistanceLoss": loss(
        nn.TripletMarginWithDistanceLoss, *PAIR, lambda: x(5, 4)
    ),
    # Lazy.
    "LazyBatchNorm1d": lazy(nn.LazyBatchNorm1d, lambda: x(5, 4, 3)),
    "LazyBatchNorm2d": lazy(nn.LazyBatchNorm2d, lambda: x(5, 4, 3, 3)),
    "LazyBatchNorm3d": lazy(nn.LazyBatchNorm3d, lambda: x(5, 4, 2, 2, 2)),
    "LazyConv1d": lazy(lambda: nn.LazyConv1d(6, 2), lambda: x(5, 4, 3)),
    "LazyConv2d": lazy(lambda: nn.LazyConv2d(6, 2), lambda: x(5, 4, 3, 3)),
    "LazyConv3d": lazy(lambda: nn.LazyConv3d(6, 2), lambda: x(5, 4, 2, 2, 2)),
    "LazyConvTranspose1d": lazy(
        lambda: nn.LazyConvTranspose1d(6, 2), lambda: x(5, 4, 3)
    ),
    "LazyConvTranspose2d": lazy(
        lambda: nn.LazyConvTranspose2d(6, 2), lambda: x(5, 4, 3, 3)
    ),
    "LazyConvTranspose3d": lazy(
        lambda: nn.LazyConvTranspose3d(6, 2), lambda: x(5, 4, 2, 2, 2)
    ),
    "LazyInstanceNorm1d": lazy(nn.LazyInstanceNorm1d, lambda: x(5, 4, 3)),
    "LazyInstanceNorm2d": lazy(nn.LazyInstanceNorm2d, lambda: x(5, 4, 3, 3)),
    "LazyInstanceNorm3d": lazy(nn.LazyInstanceNorm3d, lambda: x(5, 4, 2, 2, 2)),
    "LazyLinear": lazy(lambda: nn.LazyLinear(6), lambda: x(5, 4)),
    # Containers.
    "DataParallel": None,  # copies a module to other GPUs
    "LinearCrossEntropyOptions": None,  # an argument, no module
    "Container": None,  # of old, the same as Module
    "Module": None,  # has no forward
    "ModuleDict": elementwise(
        lambda: Held(
            nn.ModuleDict({"a": nn.Linear(4, 3)}), lambda held, v: held["a"](v)
        )
    ),
    "ModuleList": elementwise(
        lambda: Held(nn.ModuleList([nn.Linear(4, 3)]), lambda held, v: held[0](v))
    ),
    "ParameterDict": elementwise(
        lambda: Held(
            nn.ParameterDict({"a": parameter(4, 3)}), lambda held, v: v @ held["a"]
        )
    ),
    "ParameterList": elementwise(
        lambda: Held(nn.ParameterList([parameter(4, 3)]), lambda held, v: v @ held[0])
    ),
    "Sequential": elementwise(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    ),
}


def exported():
    return {
        name
        for name in dir(nn)
        if inspect.isclass(getattr(nn, name)) and issubclass(getattr(nn, name), nn.Module)
    } | {n for n in nn.modules.__all__}


def test_the_table_names_every_module():
    missing = exported() - set(MODULES)
    assert not missing, f"modules of torch that the table lacks: {sorted(missing)}"


def tensors_of(result):
    """The tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in tensors_of(part)]
    return []


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, ts.DTensor) else tensor


def run(module, inputs):
    """Results, and the gradients of inputs and parameters."""
    given = [
        v.detach().requires_grad_() if v.is_floating_point() else v for v in inputs
    ]
    results = [r for r in tensors_of(module(*given))]
    roots = [r for r in results if r.requires_grad]
    if roots:
        total = sum((r * (1 + i)).sin().sum() for i, r in enumerate(roots))
        total.backward()
    grads = [v.grad for v in given if v.is_floating_point()]
    grads += [p.grad for p in module.parameters()]
    return results, grads


def placement(tensor, dim):
    return [Shard(dim)] if dim is not None and dim < tensor.dim() else [Replicate()]


def distribute(module, mesh, dim):
    module = copy.deepcopy(module)
    for tensor in module.parameters():
        ts.distribute_(tensor, mesh, placement(tensor, dim))
    for tensor in module.buffers():
        ts.distribute_(tensor, mesh, [Replicate()])
    return module


def check_close(actual, expected, what):
    assert (actual is None) == (expected is None), what
    if actual is not None:
        torch.testing.assert_close(
            whole(actual), expected.detach(), rtol=1e-9, atol=1e-9, msg=lambda m: f"{what}: {m}"
        )


def layouts(module):
    """The dimension that parameters are sharded on, and whether the batch is."""
    dims = max((p.dim() for p in module.parameters()), default=0)
    for dim in [None, *range(dims)]:
        for batch in (False, True):
            yield dim, batch


@pytest.mark.parametrize("name", [n for n, c in MODULES.items() if c is not None])
def test_equals_one_device(name):
    row = MODULES[name]
    if not hasattr(nn, name) and name not in nn.modules.__all__:
        if name != "NonDynamicallyQuantizableLinear":
            pytest.skip(f"this torch has no {name}")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = row.make().double()
        inputs = row.inputs[0]()
        for training in (True, False):
            module.train(training)
            plain = copy.deepcopy(module)
            expected, grads = run(plain, inputs)
            with ts.simulate(RANKS):
                mesh = ts.init_device_mesh("cpu", (RANKS,))
                for dim, batch in layouts(module):
                    what = f"{name} train={training} parameters={dim} batch={batch}"
                    ours = distribute(module, mesh, dim)
                    sharded = batch and row.batch is not None
                    given = [
                        ts.distribute_tensor(
                            v, mesh, placement(v, row.batch if sharded else None)
                        )
                        for v in inputs
                    ]
                    actual, actual_grads = run(ours, given)
                    assert len(actual) == len(expected), what
                    if row.random == "always" or (row.random and training):
                        # Which numbers are drawn differs; their shape does not.
                        assert [a.shape for a in actual] == [e.shape for e in expected]
                        continue
                    for a, e in zip(actual, expected):
                        check_close(a, e, what)
                    for a, e in zip(actual_grads, grads, strict=True):
                        check_close(a, e, f"{what} gradient")
                    for a, e in zip(ours.buffers(), plain.buffers(), strict=True):
                        check_close(a, e, f"{what} buffer")
