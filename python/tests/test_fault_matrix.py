"""A part of the fault matrix; all of it: python/tests/fault_matrix.py."""

import os
import pathlib

import pytest
from programs import run_program

PROGRAM = pathlib.Path(__file__).parent / "fault_matrix.py"
# Machines that run tests have other work: ten times as long is still less than
# the timeout, after which anything raises.
SLACK = "10"


@pytest.mark.parametrize(
    "faults, phases, ranks",
    [
        ("collective", "forward,backward,optimizer,save,load", "2"),
        ("group", "forward,save", "1"),
        ("kill,raise", "backward,save", "0"),
        ("index,label", "forward,load", "3"),
        ("stop", "optimizer", "1"),
    ],
)
def test_survivors_raise_in_time(faults, phases, ranks):
    done = run_program(
        PROGRAM, "--faults", faults, "--phases", phases, "--ranks", ranks,
        "--slack", SLACK,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
