"""Distributed tensors from nothing: each rank makes only its own shard."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tessera import _C
from tessera._C import manual_seed

__all__ = ["empty", "full", "manual_seed", "ones", "rand", "randn", "zeros"]


def _size_of(size: tuple[Any, ...]) -> Sequence[int]:
    """zeros(2, 3) and zeros((2, 3)) mean the same."""
    if len(size) == 1 and not isinstance(size[0], int):
        return size[0]
    return size


def _check_layout(name: str, layout: torch.layout) -> None:
    if layout is not torch.strided:
        raise NotImplementedError(
            f"[{name}] expected layout torch.strided, got {layout}"
        )


def _factory(make: Callable[..., torch.Tensor], name: str, doc: str):
    def factory(
        *size,
        dtype: torch.dtype | None = None,
        layout: torch.layout = torch.strided,
        requires_grad: bool = False,
        device_mesh=None,
        placements: Sequence[Any] | None = None,
    ) -> torch.Tensor:
        _check_layout(name, layout)
        return make(
            _size_of(size), device_mesh, placements, dtype, requires_grad
        )

    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = (
        f"{doc}\n\n    Without placements it is replicated; without a mesh, the "
        "one that was\n    entered with `with mesh:` is taken."
    )
    return factory


empty = _factory(_C.empty, "empty", "A distributed tensor with any values.")
zeros = _factory(_C.zeros, "zeros", "A distributed tensor of zeros.")
ones = _factory(_C.ones, "ones", "A distributed tensor of ones.")
rand = _factory(
    _C.rand, "rand", "Uniform on [0, 1), the same in every layout of one seed."
)
randn = _factory(
    _C.randn, "randn", "Normally distributed, the same in every layout."
)


def full(
    size,
    fill_value,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh=None,
    placements: Sequence[Any] | None = None,
) -> torch.Tensor:
    """A distributed tensor with one value everywhere."""
    _check_layout("full", layout)
    if isinstance(size, int):
        size = (size,)
    return _C.full(
        size, fill_value, device_mesh, placements, dtype, requires_grad
    )
