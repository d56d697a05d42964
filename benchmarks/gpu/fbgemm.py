#!/usr/bin/env python3
"""FBGEMM's table-batched embeddings on the workloads of bench_gpu.

    python3 benchmarks/gpu/fbgemm.py

Needs a GPU and the package fbgemm_gpu built for the installed torch. Prints the
lines of bench_gpu's table: the same indices, sizes and byte formulas.
"""

import math

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

INDICES = 4_194_304
BAG = 32
FLOATS = 1_280_000_000


def milliseconds(call, rounds=9):
    """The median of several, by the device's clock, after two that warm up."""
    call()
    call()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[rounds // 2]


def draw(rows, zipf):
    if zipf:
        uniform = torch.rand(INDICES, dtype=torch.double, device="cuda")
        ranks = (uniform * math.log(rows)).exp().long().clamp_max(rows - 1)
        return (ranks * 7_919) % rows
    return torch.randint(rows, (INDICES,), device="cuda")


def table(rows, width, half, pooling):
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, EmbeddingLocation.DEVICE, ComputeDevice.CUDA)],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=1e-9,
        weights_precision=SparseType.FP16 if half else SparseType.FP32,
        output_dtype=SparseType.FP16 if half else SparseType.FP32,
        pooling_mode=pooling,
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.IGNORE,
    )


def report(name, ms, size, copy):
    rate = size / ms * 1e3
    print(
        f"| {name} | FBGEMM | {ms:.3f} | {rate / 1e9:.0f} | {100 * rate / copy:.0f}% |",
        flush=True,
    )


def measure(width, half, zipf, copy):
    rows = FLOATS // width
    indices = draw(rows, zipf)
    distinct = indices.unique().numel()
    row = width * (2 if half else 4)
    name = f"{'Zipf' if zipf else 'uniform'}, {width}{' halves' if half else ''}"
    bags = INDICES // BAG
    offsets = torch.arange(0, INDICES + 1, BAG, device="cuda")
    emb = table(rows, width, half, PoolingMode.SUM)
    with torch.no_grad():
        report(
            f"bag sum of {BAG}, {name}",
            milliseconds(lambda: emb(indices, offsets)),
            INDICES * (row + 8) + bags * (row + 8),
            copy,
        )
    out = emb(indices, offsets)
    grad = torch.randn_like(out)
    report(
        f"bag backward + SGD, {name}",
        milliseconds(lambda: out.backward(grad, retain_graph=True)),
        row * (INDICES + 2 * distinct),
        copy,
    )
    del emb, out, grad
    each = table(rows, width, half, PoolingMode.NONE)
    starts = torch.arange(INDICES + 1, device="cuda")
    with torch.no_grad():
        report(
            f"lookup, {name}",
            milliseconds(lambda: each(indices, starts)),
            INDICES * (2 * row + 8),
            copy,
        )


def main():
    memory = torch.empty(FLOATS, device="cuda").normal_()
    target = torch.empty_like(memory)
    copy = 8 * FLOATS / milliseconds(lambda: target.copy_(memory)) * 1e3
    del memory, target
    print(f"copy: {copy / 1e9:.0f} GB/s\n")
    print("| | | ms | GB/s | of a copy |\n|---|---|---|---|---|")
    measure(128, False, False, copy)
    measure(128, False, True, copy)
    measure(64, False, False, copy)
    measure(256, False, False, copy)
    measure(128, True, False, copy)


if __name__ == "__main__":
    main()
