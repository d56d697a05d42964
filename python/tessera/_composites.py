"""Functions of torch that are written in Python and make plain tensors.

torch.masked.var makes counts, which are the same on every rank. Called with
distributed tensors, these functions take what they make as replicated. A plain
tensor among the arguments is the caller's, and is refused as elsewhere. Functions
that make random tensors are left alone: ranks would make different ones.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.masked
from torch.utils import _pytree

from tessera import _C


def _replicating(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [
            leaf
            for leaf in _pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        ]
        distributed = [_C.is_dtensor(tensor) for tensor in tensors]
        if not any(distributed):
            return function(*args, **kwargs)
        if any(t.dim() and not d for t, d in zip(tensors, distributed)):
            return function(*args, **kwargs)
        with _C.ImplicitReplication():
            return function(*args, **kwargs)

    return call


_FUNCTIONS = {
    torch: ("unravel_index",),
    torch.masked: (
        "amax",
        "amin",
        "argmax",
        "argmin",
        "logsumexp",
        "mean",
        "median",
        "norm",
        "std",
        "sum",
        "var",
    ),
}


def _install() -> None:
    for owner, names in _FUNCTIONS.items():
        for name in names:
            setattr(owner, name, _replicating(getattr(owner, name)))


_install()
