"""Serving runs in torch.inference_mode(): every op of PyTorch's database, on
tensors that were made in the mode and outside it."""

import warnings

import op_sweep
import pytest
import torch
from test_op_db import OPS, listed

LIMITS = op_sweep.Limits(samples=1, layouts=3)


@pytest.fixture(params=["inside", "outside"])
def made(request, monkeypatch):
    """Where the distributed arguments are made."""
    if request.param == "outside":
        laid_out = op_sweep.laid_out

        def outside(*args):
            with torch.inference_mode(False):
                return laid_out(*args)

        monkeypatch.setattr(op_sweep, "laid_out", outside)
    return request.param


@pytest.mark.parametrize("name", OPS)
def test_op(name, made):
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        verdict = op_sweep.check(OPS[name], LIMITS, backward=False)
    assert not verdict.wrong, verdict.wrong[0]
    assert not verdict.refused or name in listed(), verdict.refused[0]
