"""Checkpoints of torch itself: files of torch.save, directories of DCP."""

import os
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from tessera._checkpoint_dcp import read_dcp
from tessera._checkpoint_names import Tensors, by_parameter, flatten


class Foreign(NamedTuple):
    """What a checkpoint of torch holds, by dotted names."""

    tensors: Tensors
    values: dict[str, Any]


def read_foreign(path: str) -> Foreign | None:
    """What only torch can read, read whole; None for other files.

    Pickles are read by unpicklers that call nothing but what makes tensors and
    plain values. Beside a file of another format none is opened at all.
    """
    if os.path.isdir(path):
        names = os.listdir(path)
        if ".metadata" not in names or any(_is_native(name) for name in names):
            return None
        held = read_dcp(path)
    elif os.path.isfile(path) and _is_torch_file(path):
        held = torch.load(path, map_location="cpu", weights_only=True)
    else:
        return None
    out = Foreign({}, {})
    flatten("", held, *out)
    return out


def _is_native(name: str) -> bool:
    """Whether it is a file of a directory that the library itself reads."""
    return name == "manifest.json" or name.endswith(
        (".safetensors", ".safetensors.index.json")
    )


def _is_torch_file(path: str) -> bool:
    """A zip, or the pickle that torch.save wrote before."""
    if path.endswith(".safetensors"):
        return False
    if zipfile.is_zipfile(path):
        return True
    with open(path, "rb") as file:
        return file.read(2)[:1] == b"\x80"


def name_parameters(
    foreign: Foreign, path: str, key: str, names: list[str]
) -> None:
    """Lets the state of the optimizer `key` go by the names of its parameters.

    torch numbers them, in the order of the optimizer's groups.
    """
    tensors, values = foreign
    whole = values.get(key)
    if isinstance(whole, Mapping):  # it holds no tensor
        del values[key]
        values.update({f"{key}.{part}": item for part, item in whole.items()})
    prefix = f"{key}.state."
    groups = _groups(values, f"{key}.param_groups")
    numbers = [n for group in groups for n in group.get("params", [])]
    held = by_parameter(prefix, names, (*tensors, *values))
    if held or any(isinstance(number, str) for number in numbers):
        return
    if numbers and len(numbers) != len(names):
        raise ValueError(
            f"[load] {path} holds the state of {len(numbers)} parameters for "
            f"'{key}', which has {len(names)}"
        )
    for group in groups:
        group["params"] = [names[number] for number in group["params"]]
    for store in foreign:
        for name in [n for n in store if n.startswith(prefix)]:
            number, _, field = name.removeprefix(prefix).partition(".")
            if not number.isdigit() or int(number) >= len(names):
                raise ValueError(
                    f"[load] {path} holds '{name}', but '{key}' has the "
                    f"{len(names)} parameters {names}"
                )
            store[f"{prefix}{names[int(number)]}.{field}"] = store.pop(name)


def _groups(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The options of an optimizer's groups; DCP has each for itself."""
    groups: dict[int, dict[str, Any]] = {}
    for full in [n for n in values if n.startswith(f"{name}.")]:
        index, _, option = full.removeprefix(f"{name}.").partition(".")
        groups.setdefault(int(index), {})[option] = values.pop(full)
    if groups:
        values[name] = [groups[index] for index in sorted(groups)]
    return values.get(name, [])
