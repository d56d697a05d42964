"""Worlds for the tests: `mesh` runs a test on simulated ranks."""

import pytest
import torch

import tessera as ts

# torch.manual_seed() keeps a text of the whole stack for every kind of device
# that might be used later. That takes milliseconds, thousands of times.
for devices in (torch.cuda, torch.xpu, torch.mtia):
    if not devices.is_available():
        devices.manual_seed_all = lambda seed: None


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


def pytest_pycollect_makeitem(collector, name, obj):
    """A pair of tests under one name would not be collected, and never run."""
    if name.startswith("test") and isinstance(obj, tuple):
        raise collector.CollectError(
            f"{name} is {len(obj)} tests: give each a name of its own"
        )
