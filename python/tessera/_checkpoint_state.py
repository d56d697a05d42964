"""What a program saves, as a map of names to tensors and one of values.

Modules give their state_dict, optimizers their state by the names of the
parameters, so that it fits any layout and order of parameters. What is no
tensor is kept as JSON.
"""

import collections
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from tessera import _C, _world
from tessera._checkpoint_formats import Foreign, name_parameters
from tessera._checkpoint_names import (
    Tensors,
    all_prefixes,
    by_parameter,
    flatten,
    is_stateful,
    put,
    rebuilt,
)

Saved = dict[str, tuple[tuple[int, ...], torch.dtype]]


def join_world() -> None:
    """Joins the ranks that this process belongs to, if it belongs to any."""
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if dist.is_available() and dist.is_initialized() or launched:
        _world.ensure()


# ---- values ----


def _pack(value: Any, name: str) -> Any:
    """`value` as JSON has it, with what JSON lacks marked."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_pack(item, name) for item in value]
    if isinstance(value, tuple):
        return {"__tuple__": [_pack(item, name) for item in value]}
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, collections.Counter) else "dict"
        items = [[_pack(k, name), _pack(v, name)] for k, v in value.items()]
        return {f"__{kind}__": items}
    raise TypeError(
        f"[checkpoint] '{name}' holds a {type(value).__name__}: expected "
        "tensors, modules, optimizers, what has state_dict and "
        "load_state_dict, numbers, strings, lists, tuples and dicts"
    )


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    if isinstance(value, dict):
        ((kind, items),) = value.items()
        if kind == "__float__":
            return float(items)
        if kind == "__tuple__":
            return tuple(_unpack(item) for item in items)
        if kind not in ("__dict__", "__counter__"):
            raise ValueError(f"'{kind}' is none of ours")
        pairs = {_unpack(k): _unpack(v) for k, v in items}
        return collections.Counter(pairs) if kind == "__counter__" else pairs
    return value


def decode(values: Mapping[str, str]) -> dict[str, Any]:
    """The values of a checkpoint. Those that a C++ program set are texts."""
    out = {}
    for name, text in values.items():
        try:
            out[name] = _unpack(json.loads(text))
        except ValueError:
            out[name] = text
    return out


# ---- the state ----


class State:
    """A module, or a dict of what a program saves and loads."""

    def __init__(self, state: Any, caller: str):
        if isinstance(state, torch.nn.Module):
            self.entries: list[tuple[str, Any]] = [("", state)]
        elif isinstance(state, Mapping):
            for key in state:
                if not isinstance(key, str) or not key:
                    raise TypeError(
                        f"[{caller}] expected names as keys, got {key!r}"
                    )
            self.entries = list(state.items())
        else:
            raise TypeError(
                f"[{caller}] expected a module or a dict, got "
                f"{type(state).__name__}"
            )
        self.state = state
        self.names = self._parameter_names()

    def _parameter_names(self) -> dict[int, str]:
        modules = [
            (key, value)
            for key, value in self.entries
            if isinstance(value, torch.nn.Module)
        ]
        names: dict[int, str] = {}
        for key, module in modules:
            prefix = f"{key}." if len(modules) > 1 else ""
            for name, parameter in module.named_parameters():
                names.setdefault(id(parameter), prefix + name)
        return names

    def _name_of(self, parameter: torch.Tensor, key: str) -> str:
        name = self.names.get(id(parameter))
        if name is None:
            raise ValueError(
                f"[checkpoint] '{key}' updates a parameter of shape "
                f"{tuple(parameter.shape)} that no module beside it has: save "
                "the module in the same dict"
            )
        return name

    # -- saving --

    def flatten(self) -> tuple[Tensors, dict[str, str]]:
        tensors: Tensors = {}
        values: dict[str, Any] = {}
        for key, value in self.entries:
            if isinstance(value, torch.optim.Optimizer):
                self._flatten_optimizer(key, value, tensors, values)
            else:
                flatten(key, value, tensors, values)
        return tensors, {
            name: json.dumps(_pack(value, name))
            for name, value in values.items()
        }

    def _flatten_optimizer(
        self,
        key: str,
        optimizer: torch.optim.Optimizer,
        tensors: Tensors,
        values: dict[str, Any],
    ) -> None:
        groups = []
        for group in optimizer.param_groups:
            names = [self._name_of(p, key) for p in group["params"]]
            groups.append({**group, "params": names})
            for parameter, name in zip(group["params"], names):
                for field, item in optimizer.state.get(parameter, {}).items():
                    flatten(
                        f"{key}.state.{name}.{field}", item, tensors, values
                    )
        options = [
            {k: v.item() if isinstance(v, torch.Tensor) else v
             for k, v in group.items()}
            for group in groups
        ]
        put(values, f"{key}.param_groups", options)

    # -- loading --

    def targets(
        self, path: str, saved: Saved, values: dict[str, Any], strict: bool
    ) -> Tensors:
        """The tensors to load into."""
        tensors: Tensors = {}
        held = all_prefixes((*saved, *values))
        for key, value in self.entries:
            is_module = isinstance(value, torch.nn.Module)
            if strict and not is_module and key not in held:
                raise ValueError(
                    f"[load] {path} does not hold '{key}'; pass strict=False "
                    "to leave it as it is"
                )
            if isinstance(value, torch.optim.Optimizer):
                if key in held:
                    self._optimizer_targets(key, value, saved, values, tensors)
                continue
            own: Tensors = {}
            flatten(key, value, own, {})
            if is_module and strict:
                self._check_nothing_left(path, key, own, saved)
            for name, tensor in own.items():
                put(tensors, name, tensor)
        if not strict:
            return {k: v for k, v in tensors.items() if k in saved}
        return tensors

    def _check_nothing_left(
        self, path: str, key: str, own: Tensors, saved: Saved
    ) -> None:
        prefix = f"{key}." if key else ""
        left = [
            name
            for name in saved
            if name.startswith(prefix)
            and name not in own
            and (key or not name.startswith("optimizer"))
        ]
        if left:
            raise ValueError(
                f"[load] {path} holds '{left[0]}', which the module does not "
                "have; pass strict=False to leave it out"
            )

    def _optimizer_targets(
        self,
        key: str,
        optimizer: torch.optim.Optimizer,
        saved: Saved,
        values: dict[str, Any],
        tensors: Tensors,
    ) -> None:
        parameters = {
            self._name_of(parameter, key): parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        prefix = f"{key}.state."
        held = by_parameter(prefix, parameters, saved)
        others = by_parameter(prefix, parameters, values)
        for name, parameter in parameters.items():
            if name not in held and name not in others:
                optimizer.state.pop(parameter, None)
                continue
            state = optimizer.state[parameter]
            for field, full in others.get(name, {}).items():
                state[field] = values[full]
            for field, full in held.get(name, {}).items():
                shape, dtype = saved[full]
                tensor = state.get(field)
                if not _fits(tensor, parameter, shape):
                    if field == "step" and not dtype.is_floating_point:
                        dtype = torch.float32  # C++ counts in integers
                    tensor = _make(parameter, shape, dtype)
                    state[field] = tensor
                tensors[full] = tensor

    def restore(self, values: dict[str, Any]) -> None:
        """Puts back what is no tensor."""
        for key, value in self.entries:
            if isinstance(value, torch.optim.Optimizer):
                self._restore_optimizer(key, value, values)
            elif isinstance(value, torch.nn.Module):
                _restore_extra(key, value, values)
            elif is_stateful(value):
                value.load_state_dict(
                    rebuilt(key, value.state_dict(), values)
                )
            elif not isinstance(value, torch.Tensor):
                self.state[key] = rebuilt(key, value, values)

    def _restore_optimizer(
        self,
        key: str,
        optimizer: torch.optim.Optimizer,
        values: dict[str, Any],
    ) -> None:
        groups = values.get(f"{key}.param_groups", [])
        # A parameter finds its group by name: groups may be ordered otherwise.
        saved = {
            name: group for group in groups for name in group["params"]
        }
        for group in optimizer.param_groups:
            if not group["params"]:
                continue
            found = saved.get(self._name_of(group["params"][0], key))
            for option, value in (found or {}).items():
                if option == "params":
                    continue
                if isinstance(group.get(option), torch.Tensor):
                    group[option].fill_(value)
                else:
                    group[option] = value

    # -- from plain tensors --

    def fill(self, foreign: Foreign, path: str, strict: bool) -> Any:
        """Loads what this process has read from a checkpoint of torch."""
        for key, value in self.entries:
            if isinstance(value, torch.optim.Optimizer):
                names = [
                    self._name_of(parameter, key)
                    for group in value.param_groups
                    for parameter in group["params"]
                ]
                name_parameters(foreign, path, key, names)
        plain, values = foreign
        saved = {
            name: (tuple(tensor.shape), tensor.dtype)
            for name, tensor in plain.items()
        }
        tensors = self.targets(path, saved, values, strict)
        missing = [name for name in tensors if name not in plain]
        if missing:
            raise ValueError(f"[load] {path} does not hold '{missing[0]}'")
        with torch.no_grad():
            for name, tensor in tensors.items():
                copy_plain(tensor, plain[name], name)
        self.restore(values)
        return None


def copy_plain(
    tensor: torch.Tensor, value: torch.Tensor, name: str = "a tensor"
) -> None:
    """Copies a plain tensor, the same on every rank, into one of any layout."""
    if tuple(tensor.shape) != tuple(value.shape):
        raise ValueError(
            f"[load] '{name}' has the shape {tuple(tensor.shape)} but "
            f"{tuple(value.shape)} was saved"
        )
    if _C.is_dtensor(tensor) and not _C.is_dtensor(value):
        value = _C.distribute_tensor(
            value.detach().to(tensor.device),
            tensor.device_mesh,
            tensor.placements,
            True,
        )
    tensor.copy_(value)


def _fits(
    tensor: Any, parameter: torch.Tensor, shape: tuple[int, ...]
) -> bool:
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != shape:
        return False
    alike = tuple(parameter.shape) == shape
    return not alike or _C.is_dtensor(tensor) == _C.is_dtensor(parameter)


def _make(
    parameter: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    if tuple(parameter.shape) == shape:
        return torch.zeros_like(parameter.detach(), dtype=dtype)
    # Counts of steps and the like.
    return torch.zeros(shape, dtype=dtype)


def _restore_extra(
    key: str, module: torch.nn.Module, values: dict[str, Any]
) -> None:
    prefix = f"{key}." if key else ""
    for name, value in values.items():
        if not name.startswith(prefix) or not name.endswith("_extra_state"):
            continue
        owner = name.removeprefix(prefix).removesuffix("_extra_state")
        submodule = module.get_submodule(owner.rstrip("."))
        plain = torch.nn.Module.set_extra_state
        if type(submodule).set_extra_state is not plain:
            submodule.set_extra_state(value)
