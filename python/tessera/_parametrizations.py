"""torch.nn.utils.parametrizations on distributed parameters.

orthogonal needs the whole matrix, and makes plain tensors of its own (an
identity, a base), the same on every rank. It runs on the replicated matrix, with
these taken as replicated, and its result has the layout of the parameter.
"""

import functools
from typing import Any

from torch.nn.utils import parametrizations, parametrize

from tessera import _C
from tessera.placement_types import Replicate


def _on_the_whole(plain: Any) -> Any:
    @functools.wraps(plain)
    def method(self: Any, tensor: Any) -> Any:
        if not _C.is_dtensor(tensor):
            return plain(self, tensor)
        layout = tensor.placements
        whole = [Replicate() for _ in layout]
        with _C.ImplicitReplication():
            result = plain(self, tensor.redistribute(placements=whole))
        if result.requires_grad:
            # The backward pass needs the whole matrix, too.
            result.register_hook(lambda grad: grad.redistribute(placements=whole))
        return result.redistribute(placements=layout)

    return method


def _without_storage(plain: Any) -> Any:
    """What a parametrization is made of is put in the parameter's place."""

    @functools.wraps(plain)
    def maybe_set(dest: Any, src: Any) -> None:
        if _C.is_dtensor(dest) and _C.is_dtensor(src):
            dest.data = src
        else:
            plain(dest, src)

    return maybe_set


def _install() -> None:
    orthogonal = getattr(parametrizations, "_Orthogonal", None)
    for name in ("forward", "right_inverse"):
        method = getattr(orthogonal, name, None)
        if method is not None:
            setattr(orthogonal, name, _on_the_whole(method))
    maybe_set = getattr(parametrize, "_maybe_set", None)
    if maybe_set is not None:
        parametrize._maybe_set = _without_storage(maybe_set)


_install()
