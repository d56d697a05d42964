"""Changes to modules of torch that may not have been imported yet.

Importing them here would make `import tessera` slow for programs that never use
them.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_waiting: dict[str, Callable[[ModuleType], None]] = {}


def when_imported(name: str, change: Callable[[ModuleType], None]) -> None:
    """Calls change(module) now, or as soon as the module has been imported."""
    module = sys.modules.get(name)
    if module is not None:
        change(module)
    else:
        _waiting[name] = change


def replace(module: ModuleType, name: str, wrap: Callable[[Any], Any]) -> None:
    """Puts wrap(function) in the place of a module's function.

    Also where other modules of torch.distributed have imported it by name.
    """
    plain = getattr(module, name, None)
    if plain is None:
        return  # another version of torch, which has none
    wrapped = wrap(plain)
    for other_name, other in list(sys.modules.items()):
        if other_name.startswith("torch.distributed") and (
            vars(other).get(name) is plain
        ):
            setattr(other, name, wrapped)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._asking: set[str] = set()

    def find_spec(self, fullname, path, target=None):
        if fullname not in _waiting or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Another loader, and what waits for its module."""

    def __init__(self, loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec):
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        change = _waiting.pop(module.__name__, None)
        if change is not None:
            change(module)


sys.meta_path.insert(0, _Finder())
