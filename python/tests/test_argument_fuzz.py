"""Wrong arguments of every op of PyTorch's database end in an error, or in what
one device gives.

TESSERA_OP_DB=full makes 80 calls of each op instead of eight. For more, and
other, calls run argument_fuzz.py by hand.
"""

import os

import argument_fuzz
import op_sweep
import pytest
import torch

FULL = os.environ.get("TESSERA_OP_DB") == "full"
CALLS = 80 if FULL else 8
OPS = [op for op in op_sweep.op_db if op.dtypes]
PARTS = 8  # of about as many ops: tests that can run beside each other


@pytest.mark.parametrize("part", range(PARTS))
def test_wrong_arguments(part):
    bad, calls = [], 0
    for op in OPS[part::PARTS]:
        found = argument_fuzz.fuzz(op, CALLS)
        calls += found.calls
        bad += [f"{op_sweep.full_name(op)} {text}" for text in found.bad]
    assert not bad, "\n".join(bad)
    assert calls > 3 * len(OPS) / PARTS


class Op:
    """An op like those of the database, of one tensor."""

    name = "fuzzed"
    variant_test_name = ""
    dtypes = {torch.float64}
    supports_autograd = False

    def __init__(self, body):
        self.body = body

    def __call__(self, x):
        return self.body(x, op_sweep.is_replicated(x))

    def sample_inputs(self, device, dtype, requires_grad):
        Sample = op_sweep.core.SampleInput
        yield Sample(torch.ones(6, 4, dtype=dtype))


def refuses(tensor):
    raise ValueError("such a call is refused")


@pytest.mark.parametrize(
    "kind, body",
    [
        ("SIGABRT", lambda x, plain: x if plain else os.abort()),
        ("plain raises", lambda x, plain: refuses(x) if plain else x),
        ("ours raises", lambda x, plain: x if plain else refuses(x)),
        ("wrong value", lambda x, plain: x if plain else x + 1),
    ],
)
def test_what_is_wrong_is_found(kind, body):
    found = argument_fuzz.fuzz(Op(body), 12)
    assert found.counts.get(kind, 0) > 0, found
    assert any(text.startswith(kind) for text in found.bad)
