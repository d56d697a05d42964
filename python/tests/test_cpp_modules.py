"""tests/api/module_table_test.cpp names every module of torch::nn."""

import pathlib
import re

import torch.utils.cpp_extension


def test_the_table_names_every_module():
    include = pathlib.Path(torch.utils.cpp_extension.include_paths()[0])
    headers = include / "torch/csrc/api/include/torch/nn/modules"
    modules = {
        name
        for header in headers.rglob("*.h")
        for name in re.findall(r"^TORCH_MODULE\((\w+)\)", header.read_text(), re.M)
    }
    assert len(modules) > 100
    table = pathlib.Path(__file__).parents[2] / "tests/api/module_table_test.cpp"
    named = set(re.findall(r"\w+", table.read_text()))
    assert not modules - named
