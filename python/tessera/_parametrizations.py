"""torch.nn.utils.parametrizations on distributed parameters.

orthogonal makes plain tensors of its own (an identity, a base), the same on
every rank: they are taken as replicated, as the user could not say so.
"""

import functools
from typing import Any

from torch.nn.utils import parametrizations

from tessera import _C


def _with_plain_as_replicated(plain: Any) -> Any:
    @functools.wraps(plain)
    def method(self: Any, tensor: Any) -> Any:
        if not _C.is_dtensor(tensor):
            return plain(self, tensor)
        with _C.ImplicitReplication():
            return plain(self, tensor)

    return method


def _install() -> None:
    orthogonal = getattr(parametrizations, "_Orthogonal", None)
    for name in ("forward", "right_inverse"):
        method = getattr(orthogonal, name, None)
        if method is not None:
            setattr(orthogonal, name, _with_plain_as_replicated(method))


_install()
