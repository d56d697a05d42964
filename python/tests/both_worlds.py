"""Runs the same bodies on simulated ranks and over processes.

A body takes the ranks that live here: all of them, or this process's.
"""

import pytest
import torch
from processes import RANKS, run

import tessera as ts


class _OverProcesses:
    """All bodies, one after the other: starting processes takes seconds."""

    def __init__(self, bodies):
        self.bodies = bodies

    def __call__(self, rank):
        for body in self.bodies:
            torch.manual_seed(0)
            try:
                body([rank])
            except Exception as error:
                raise AssertionError(f"in {body.__name__}") from error


def in_both_worlds(*bodies):
    """Two tests: each body on simulated ranks, all of them over processes."""

    @pytest.mark.parametrize(
        "body", bodies, ids=lambda body: body.__name__.removeprefix("body_")
    )
    def test_simulated(body):
        with ts.simulate(RANKS):
            body(list(range(RANKS)))

    def test_processes():
        run(_OverProcesses(bodies))

    return test_simulated, test_processes


def mine(here, by_rank):
    """What of a list by rank is passed here: a list, or the one value."""
    if len(here) == RANKS:
        return list(by_rank)
    return by_rank[here[0]]


def listed(result):
    """The results of the ranks that live here."""
    return result if isinstance(result, list) else [result]
