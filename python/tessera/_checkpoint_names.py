"""Nested state by names that are joined with dots."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


def is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor) or is_stateful(value):
        return True
    if isinstance(value, Mapping):
        return any(_has_tensor(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_tensor(item) for item in value)
    return False


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value))


def put(store: dict[str, Any], name: str, value: Any) -> None:
    if name in store:
        raise ValueError(
            f"[checkpoint] two entries are called '{name}': names are joined "
            "with dots; rename one"
        )
    store[name] = value


def flatten(
    name: str, value: Any, tensors: Tensors, values: dict[str, Any]
) -> None:
    """Adds what `value` holds, by names joined with dots."""
    if isinstance(value, torch.Tensor):
        put(tensors, name, value)
        return
    if is_stateful(value):
        value = value.state_dict()
    elif name and not _has_tensor(value):
        put(values, name, value)
        return
    prefix = f"{name}." if name else ""
    for key, item in _items(value):
        flatten(f"{prefix}{key}", item, tensors, values)


def rebuilt(name: str, value: Any, values: dict[str, Any]) -> Any:
    """`value` with what was saved in the place of what is no tensor."""
    if name in values:
        return values[name]
    if isinstance(value, Mapping):
        return {
            key: rebuilt(f"{name}.{key}", item, values)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = [
            rebuilt(f"{name}.{index}", item, values)
            for index, item in enumerate(value)
        ]
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*items)
        return type(value)(items)
    return value


def by_parameter(
    prefix: str, parameters: Iterable[str], names: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Of `names` those of a field of a parameter: parameter, field, name."""
    known = set(parameters)
    out: dict[str, dict[str, str]] = {}
    for name in names:
        if not name.startswith(prefix):
            continue
        rest = name.removeprefix(prefix)
        owner = rest
        while owner and owner not in known:
            owner = owner.rpartition(".")[0]
        if owner and owner != rest:
            out.setdefault(owner, {})[rest.removeprefix(f"{owner}.")] = name
    return out


def all_prefixes(names: Iterable[str]) -> set[str]:
    """The names, and what stands before each of their dots."""
    out: set[str] = set()
    for name in names:
        while name and name not in out:
            out.add(name)
            name = name.rpartition(".")[0]
    return out
