"""The paths of the modules that run, for CommDebugMode.

While a mode is entered, hooks on every module tell C++ which forward begins and
ends. C++ finds the path of a collective in a backward pass from the number of
the autograd node that is running.
"""

import threading
import weakref
from typing import Any

import torch
from torch.nn.modules import module as _module

from tessera import _C


# By id, as a module may be unhashable, and need not be an attribute of another.
_Names = dict[int, str]


class _Running(threading.local):
    """The modules whose forward is running in a thread."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        # Of all modules below the outermost.
        self.names: _Names = {}


_running = _Running()
# Of each module that has run below an outermost one, the names of that forward.
# Another module may have its id later.
_seen: dict[int, tuple[weakref.ref, _Names]] = {}
_lock = threading.Lock()
_users = 0
_hooks: list[Any] = []


def _name_modules(root: torch.nn.Module) -> _Names:
    path = type(root).__name__
    names = {}
    for name, child in root.named_modules():
        names[id(child)] = f"{path}.{name}" if name else path
        _seen[id(child)] = (weakref.ref(child), names)
    return names


def _names_in_backward(module: torch.nn.Module) -> _Names | None:
    """Activation checkpointing repeats a part of a forward in the backward pass."""
    if torch._C._current_autograd_node() is None or id(module) not in _seen:
        return None
    seen, names = _seen[id(module)]
    return names if seen() is module else None


def _path_of(module: torch.nn.Module) -> str:
    """'Net.layers.0': the class of the outermost module, then its attributes."""
    if not _running.paths:
        names = _names_in_backward(module) or _name_modules(module)
        _running.names = names
        return names[id(module)]
    name = _running.names.get(id(module))
    # A module that is no attribute of another has its class for a name.
    return name or f"{_running.paths[-1]}.{type(module).__name__}"


def _before(module: torch.nn.Module, args: Any) -> None:
    path = _path_of(module)
    outer = _running.paths[-1] + "." if _running.paths else ""
    _running.paths.append(path)
    inside = path.startswith(outer)
    _C.open_module(path[len(outer) :] if inside else path)
    for name, parameter in module._parameters.items():
        if _C.is_dtensor(parameter):
            _C.name_parameter(parameter, f"{path}.{name}")


def _after(module: torch.nn.Module | None, args: Any, result: Any) -> None:
    if _running.paths:
        _running.paths.pop()
        _C.close_module()


def follow() -> None:
    """Begins to follow the modules that run."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _hooks.append(_module.register_module_forward_pre_hook(_before))
            _hooks.append(
                _module.register_module_forward_hook(_after, always_call=True)
            )


def unfollow() -> None:
    """Ends what follow() began."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            while _hooks:
                _hooks.pop().remove()
            _seen.clear()
            # Left within a forward: nobody will tell of its end.
            while _running.paths:
                _after(None, None, None)
