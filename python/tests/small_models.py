"""Small models in the style of today's architectures, as a program would have them.

Each builds only on torch. MODELS gives, by name, a module and its inputs; calling
the module with the inputs gives the loss.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def rotate(x, angles):
    """Rotary positions: pairs of channels turned by the position's angle."""
    first, second = x.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return x * angles.cos() + turned * angles.sin()


class Attention(nn.Module):
    """With grouped queries, and rotary positions where asked."""

    def __init__(self, size, heads, groups, rotary=False, causal=False):
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, size // heads
        self.rotary, self.causal = rotary, causal
        self.q = nn.Linear(size, size, bias=False)
        self.k = nn.Linear(size, groups * self.width, bias=False)
        self.v = nn.Linear(size, groups * self.width, bias=False)
        self.out = nn.Linear(size, size, bias=False)

    def split(self, x, heads):
        return x.unflatten(-1, (heads, self.width)).transpose(1, 2)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q = self.split(self.q(x), self.heads)
        k = self.split(self.k(context), self.groups)
        v = self.split(self.v(context), self.groups)
        if self.rotary:
            steps = torch.arange(x.shape[1], dtype=x.dtype)
            rates = 100.0 ** -torch.linspace(0, 1, self.width // 2, dtype=x.dtype)
            angles = torch.outer(steps, rates).repeat(1, 2)
            q, k = rotate(q, angles), rotate(k, angles)
        y = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=self.causal, enable_gqa=self.heads != self.groups
        )
        return self.out(y.transpose(1, 2).flatten(2))


class GatedMlp(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.gate = nn.Linear(size, hidden, bias=False)
        self.up = nn.Linear(size, hidden, bias=False)
        self.down = nn.Linear(hidden, size, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Each token goes through the two experts that the router prefers."""

    def __init__(self, size, hidden, count):
        super().__init__()
        self.router = nn.Linear(size, count, bias=False)
        self.experts = nn.ModuleList(GatedMlp(size, hidden) for _ in range(count))

    def forward(self, x):
        flat = x.flatten(0, 1)
        scores = self.router(flat).softmax(-1)
        weights, chosen = scores.topk(2, -1)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            result = result + share * expert(flat)
        return result.view_as(x)


class DecoderBlock(nn.Module):
    def __init__(self, size, heads, groups, mlp):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(size), RMSNorm(size)
        self.attention = Attention(size, heads, groups, rotary=True, causal=True)
        self.mlp = mlp

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, make_mlp, vocabulary=32, size=16, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.blocks = nn.ModuleList(
            DecoderBlock(size, 4, 2, make_mlp(size)) for _ in range(layers)
        )
        self.norm = RMSNorm(size)
        self.head = nn.Linear(size, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class EncoderBlock(nn.Module):
    def __init__(self, size, heads=4):
        super().__init__()
        self.attention = Attention(size, heads, heads)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.mlp = nn.Sequential(
            nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)
        )

    def forward(self, x, mask=None):
        x = self.norm1(x + self.attention(x, mask=mask))
        return self.norm2(x + self.mlp(x))


class Encoder(nn.Module):
    def __init__(self, vocabulary=32, size=16, length=8):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size)
        self.positions = nn.Embedding(length, size)
        self.blocks = nn.ModuleList(EncoderBlock(size) for _ in range(2))
        self.head = nn.Linear(size, 3)

    def forward(self, tokens, keep, labels):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        mask = keep.bool()[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        total = (x * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True)
        return F.cross_entropy(self.head(total), labels, label_smoothing=0.1)


class EncoderDecoder(nn.Module):
    def __init__(self, vocabulary=32, size=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.encoder = EncoderBlock(size)
        self.own = Attention(size, 4, 4, causal=True)
        self.cross = Attention(size, 4, 4)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, source, target):
        memory = self.encoder(self.embedding(source))
        x = self.embedding(target)
        x = self.norm1(x + self.own(x))
        x = self.norm2(x + self.cross(x, memory))
        logits = x @ self.embedding.weight.t()
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), target[:, 1:].flatten(), ignore_index=3
        )


class StateSpace(nn.Module):
    """A selective state space: a short convolution, then a scan over time."""

    def __init__(self, vocabulary=32, size=8, states=4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.short = nn.Conv1d(size, size, 3, padding=2, groups=size)
        self.rates = nn.Parameter(torch.rand(size, states).log())
        self.step = nn.Linear(size, size)
        self.inputs = nn.Linear(size, states)
        self.outputs = nn.Linear(size, states)
        self.head = nn.Linear(size, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        length = tokens.shape[1]
        x = F.silu(self.short(x.transpose(1, 2))[..., :length].transpose(1, 2))
        step = F.softplus(self.step(x)).unsqueeze(-1)
        decay = torch.exp(-step * self.rates.exp())
        entering = step * self.inputs(x).unsqueeze(2) * x.unsqueeze(-1)
        state = torch.zeros_like(entering[:, 0])
        results = []
        for t in range(length):
            state = decay[:, t] * state + entering[:, t]
            results.append((state * self.outputs(x)[:, t].unsqueeze(1)).sum(-1))
        logits = self.head(torch.stack(results, 1))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class VisionTransformer(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.patches = nn.Conv2d(3, size, 4, stride=4)
        self.first = nn.Parameter(torch.randn(1, 1, size) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 5, size) * 0.02)
        self.blocks = nn.Sequential(EncoderBlock(size), EncoderBlock(size))
        self.head = nn.Linear(size, 5)

    def forward(self, images, labels):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return F.cross_entropy(self.head(self.blocks(x)[:, 0]), labels)


class ResidualBlock(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.short = nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
        )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, images, labels):
        x = self.pool(F.relu(self.norm(self.stem(images))))
        x = F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)
        return F.cross_entropy(self.head(x), labels)


class UNet(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.down1 = nn.Conv2d(3, size, 3, padding=1)
        self.down2 = nn.Conv2d(size, 2 * size, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 2 * size)
        self.up = nn.ConvTranspose2d(2 * size, size, 2, stride=2)
        self.last = nn.Conv2d(2 * size, 4, 1)

    def forward(self, images, labels):
        first = F.silu(self.down1(images))
        low = F.silu(self.norm(self.down2(first)))
        low = F.interpolate(low, scale_factor=2.0, mode="bilinear")
        low = F.avg_pool2d(low, 2)
        x = torch.cat((first, self.up(low)), 1)
        return F.cross_entropy(self.last(F.silu(x)), labels)


class SpeechEncoder(nn.Module):
    """Convolutions over a wave, a GRU, and a loss over alignments."""

    def __init__(self, size=8, letters=6):
        super().__init__()
        self.conv1 = nn.Conv1d(1, size, 8, stride=4)
        self.conv2 = nn.Conv1d(size, size, 4, stride=2)
        self.norm = nn.LayerNorm(size)
        self.rnn = nn.GRU(size, size, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * size, letters)

    def forward(self, waves, targets, lengths):
        x = F.gelu(self.conv2(F.gelu(self.conv1(waves.unsqueeze(1)))))
        x = self.rnn(self.norm(x.transpose(1, 2)))[0]
        scores = self.head(x).log_softmax(-1).transpose(0, 1)
        frames = torch.full_like(lengths, scores.shape[0])
        return F.ctc_loss(scores, targets, frames, lengths)


class Dlrm(nn.Module):
    """Dense and sparse features, and the products of every two."""

    def __init__(self, tables=3, rows=16, size=8):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, size, mode="sum") for _ in range(tables)
        )
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, size))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(size + pairs, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense, sparse, clicks):
        x = self.bottom(dense)
        rows = [x] + [t(sparse[:, i]) for i, t in enumerate(self.tables)]
        stacked = torch.stack(rows, 1)
        products = stacked @ stacked.transpose(1, 2)
        i, j = torch.tril_indices(len(rows), len(rows), -1)
        x = torch.cat((x, products[:, i, j]), 1)
        return F.binary_cross_entropy_with_logits(self.top(x).squeeze(1), clicks)


class TwoTower(nn.Module):
    def __init__(self, rows=16, size=8):
        super().__init__()
        self.users, self.items = nn.Embedding(rows, size), nn.Embedding(rows, size)
        self.user = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 4))
        self.item = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 4))

    def forward(self, users, items):
        u = F.normalize(self.user(self.users(users)), dim=-1)
        v = F.normalize(self.item(self.items(items)), dim=-1)
        # Other items of the batch are the negatives.
        return F.cross_entropy(u @ v.t() / 0.1, torch.arange(users.shape[0]))


class DiffusionTransformer(nn.Module):
    """Blocks whose scales and shifts follow from the time of the noise."""

    def __init__(self, size=16):
        super().__init__()
        self.size = size
        self.patches = nn.Conv2d(3, size, 4, stride=4)
        self.time = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, 3 * size))
        self.norm = nn.LayerNorm(size, elementwise_affine=False)
        self.attention = Attention(size, 4, 4)
        self.out = nn.Linear(size, 48)

    def forward(self, images, noise, times):
        rates = torch.exp(-torch.arange(self.size // 2) * math.log(100.0)).to(images.dtype)
        angles = times[:, None] * rates
        code = torch.cat((angles.sin(), angles.cos()), -1)
        shift, scale, gate = self.time(code).unsqueeze(1).chunk(3, -1)
        level = times[:, None, None, None]
        x = self.patches(images * (1 - level) + noise * level).flatten(2).transpose(1, 2)
        x = x + gate * self.attention(self.norm(x) * (1 + scale) + shift)
        y = self.out(x).transpose(1, 2).unflatten(-1, (2, 2))
        return F.mse_loss(F.pixel_shuffle(y, 4), noise)


def tokens(length=8):
    return torch.randint(4, 32, (BATCH, length))


def images(size=8):
    return torch.randn(BATCH, 3, size, size, dtype=torch.float64)


def labels(*sizes):
    return torch.randint(0, 3, (BATCH, *sizes))


def keep():
    mask = torch.ones(BATCH, 8, dtype=torch.float64)
    mask[1, 5:] = 0
    return mask


MODELS = {
    "decoder": (lambda: Decoder(lambda n: GatedMlp(n, 32)), lambda: (tokens(),)),
    "experts": (lambda: Decoder(lambda n: Experts(n, 16, 4)), lambda: (tokens(),)),
    "encoder": (Encoder, lambda: (tokens(), keep(), labels())),
    "encoder and decoder": (EncoderDecoder, lambda: (tokens(), tokens(6))),
    "state space": (StateSpace, lambda: (tokens(),)),
    "vision transformer": (VisionTransformer, lambda: (images(), labels())),
    "resnet": (ResNet, lambda: (images(), labels())),
    "u-net": (UNet, lambda: (images(), labels(8, 8))),
    "speech encoder": (
        SpeechEncoder,
        lambda: (
            torch.randn(BATCH, 80, dtype=torch.float64),
            torch.randint(1, 6, (BATCH, 3)),
            torch.tensor([3, 2, 3, 1]),
        ),
    ),
    "dlrm": (
        Dlrm,
        lambda: (
            torch.randn(BATCH, 5, dtype=torch.float64),
            torch.randint(0, 16, (BATCH, 3, 2)),
            torch.rand(BATCH, dtype=torch.float64),
        ),
    ),
    "two towers": (
        TwoTower,
        lambda: (torch.randint(0, 16, (BATCH,)), torch.randint(0, 16, (BATCH,))),
    ),
    "diffusion transformer": (
        DiffusionTransformer,
        lambda: (images(), images(), torch.rand(BATCH, dtype=torch.float64)),
    ),
}
