"""Worlds for the tests: `mesh` runs a test on simulated ranks."""

import pytest
import torch

import tessera as ts


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def world():
    """Four simulated ranks."""
    with ts.simulate(4) as world:
        yield world


@pytest.fixture
def mesh(world):
    """A 1-d mesh of four simulated ranks."""
    return ts.init_device_mesh("cpu", (4,))
