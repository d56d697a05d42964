"""Every op of PyTorch's own database, in many layouts, against one device.

No value may be wrong. What is refused is listed in op_db_refused.txt, which may
only get shorter: an op that is refused and not listed fails. TESSERA_OP_DB=full
tries many more samples and layouts, and then an op that is listed and works fails
too.
"""

import os
import pathlib
import warnings

import op_sweep
import pytest
import torch

FULL = os.environ.get("TESSERA_OP_DB") == "full"
LISTED = pathlib.Path(__file__).with_name("op_db_refused.txt")


def listed():
    lines = LISTED.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


OPS = {op_sweep.full_name(op): op for op in op_sweep.op_db}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sweep(name):
    limits = op_sweep.FULL if FULL else op_sweep.QUICK
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return op_sweep.check(OPS[name], limits)


@pytest.mark.parametrize("name", OPS)
def test_op(name):
    known = {line for line in listed() if line.split()[0] == name}
    verdict = sweep(name)
    assert not verdict.wrong, "\n".join(verdict.wrong[:5])
    found = {}
    if verdict.refused:
        found[name] = verdict.refused[0]
    if verdict.refused_backward:
        found[f"{name} backward"] = verdict.refused_backward[0]
    new = {line: text for line, text in found.items() if line not in known}
    assert not new, f"refused, but not in {LISTED.name}: {new}"
    stale = known - set(found) if FULL else set()
    assert not stale, f"works now: take it from {LISTED.name}"


def test_the_list_names_ops():
    assert {line.split()[0] for line in listed()} <= set(OPS)


def test_a_wrong_value_is_found():
    """A sweep that finds nothing wrong must be able to."""
    op = OPS["tril"]
    right = op.op
    try:
        op.op = lambda x, *args: right(x, *args) + (
            0 if op_sweep.is_replicated(x) else 1
        )
        assert op_sweep.check(op, op_sweep.QUICK).wrong
    finally:
        op.op = right
