"""Models of the transformers package, which nobody here wrote, run unmodified."""

import warnings

import pytest
import torch

pytest.importorskip("transformers")

import transformers_models  # noqa: E402


@pytest.mark.parametrize("name", transformers_models.MODELS)
def test_equals_one_device(name):
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = transformers_models.check(name)
    assert not any(found.values()), found
