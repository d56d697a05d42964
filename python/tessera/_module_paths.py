"""The paths of the modules that run, for CommDebugMode.

While a mode is entered, hooks on every module tell C++ which forward begins and
ends. C++ finds the path of a collective in a backward pass from the number of
the autograd node that is running.
"""

import threading
from typing import Any

import torch
from torch.nn.modules import module as _module

from tessera import _C


class _Running(threading.local):
    """The modules whose forward is running in a thread."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        # By id, of all modules below the outermost.
        self.names: dict[int, str] = {}


_running = _Running()
_lock = threading.Lock()
_users = 0
_hooks: list[Any] = []


def _path_of(module: torch.nn.Module) -> str:
    """'Net.layers.0': the class of the outermost module, then its attributes."""
    if not _running.paths:
        root = type(module).__name__
        _running.names = {
            id(child): f"{root}.{name}" if name else root
            for name, child in module.named_modules()
        }
        return root
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
            # Left within a forward: nobody will tell of its end.
            while _running.paths:
                _after(None, None, None)
