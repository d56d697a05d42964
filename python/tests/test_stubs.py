"""The type stubs name what is there, and nothing else."""

import ast
import pathlib

import pytest

import tessera as ts
from tessera import _C, _tensor

PACKAGE = pathlib.Path(ts.__file__).parent


def stubbed(body):
    """The names that a module's or a class's stub declares, with their nodes."""
    names = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            names[node.target.id] = node
        elif isinstance(node, ast.Assign):
            names.update({target.id: node for target in node.targets})
    return names


def stub(file):
    return stubbed(ast.parse((PACKAGE / file).read_text()).body)


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_compiled_module():
    assert public(stub("_C.pyi")) == public(dir(_C))


@pytest.mark.parametrize(
    "name, node",
    [i for i in stub("_C.pyi").items() if isinstance(i[1], ast.ClassDef)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_compiled_classes(name, node):
    assert public(stubbed(node.body)) == public(vars(getattr(_C, name)))


def test_attributes_of_tensors():
    declared = stub("_tensor.pyi")
    assert set(_tensor.ATTRIBUTES) | {"from_local"} == set(
        stubbed(declared["DTensor"].body)
    )
    assert {"DTensor", "ATTRIBUTES"} == set(declared)


@pytest.mark.parametrize(
    "module",
    [ts, ts.checkpoint, ts.sharded, ts.debug, ts.placement_types, ts.experimental],
    ids=lambda module: module.__name__,
)
def test_public_names(module):
    """All are there; what C++ gives is re-exported under the stub's name."""
    assert len(set(module.__all__)) == len(module.__all__)
    declared = stub("_C.pyi")
    for name in module.__all__:
        value = getattr(module, name)
        if value is getattr(_C, name, None):
            assert name in declared


@pytest.mark.parametrize(
    "module",
    [
        ts,
        ts.debug,
        ts.device_mesh,
        ts.embedding,
        ts.experimental,
        ts.placement_types,
        ts.sharded,
    ],
    ids=lambda module: module.__name__,
)
def test_no_leaked_names(module):
    """What is there is named in __all__, or is a module of the package."""
    leaked = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in module.__all__
        and getattr(value, "__package__", None) != "tessera"
    }
    assert leaked == set()
