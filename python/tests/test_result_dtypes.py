"""Losses of operands that differ in dtype: torch's meta functions in Python
promote where the kernels keep the dtype of the first."""

import pytest
import torch
import torch.nn.functional as F

import tessera as ts
from tessera import Shard


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("loss", [F.huber_loss, F.soft_margin_loss, F.mse_loss])
@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_the_dtype_is_that_of_the_shards(mesh, loss, reduction, narrow):
    a, b = torch.randn(5, 3, dtype=narrow), torch.randn(5, 3, dtype=torch.float64)
    for x, y in ((a, b), (b, a)):
        plain = loss(x, y, reduction=reduction)
        for _ in range(2):  # the second call has a plan
            ours = loss(
                ts.distribute_tensor(x, mesh, [Shard(0)]),
                ts.distribute_tensor(y, mesh, [Shard(1)]),
                reduction=reduction,
            )
            assert ours.dtype == plain.dtype
            assert {shard.dtype for shard in ours.shards()} == {plain.dtype}
            torch.testing.assert_close(
                ours.full_tensor(), plain, rtol=1e-2, atol=1e-2
            )
