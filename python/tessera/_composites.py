"""Functions of torch that are written in Python and make plain tensors.

torch.masked.var makes counts, which are the same on every rank. Called with
distributed tensors, these functions take what they make as replicated. A plain
tensor among the arguments is the caller's, and is refused as elsewhere. Functions
that make random tensors, of which ranks would make different ones, draw from the
library's stream: fractional pooling and the basis of svd_lowrank. A function that
clamps a copy of its argument in place is given one that is not pending. The loss that
works through its batch in chunks, in buffers of its own, is the one without chunks.

Where a public function only calls another of its module, that one is replaced:
whoever imported the public one earlier has it too.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch._lowrank
import torch.masked
from torch.utils import _pytree

from tessera import _C
from tessera._late import when_imported
from tessera.placement_types import Replicate


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


def _drawing(function: Callable[..., Any], spatial: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # Of the positional ones _random_samples is the last.
        if _C.is_dtensor(input) and len(args) < 5:
            if kwargs.get("_random_samples") is None:
                batch, channels = (1, 1, *input.shape[:-spatial])[-2:]
                empty = input.detach().new_empty(batch, channels, spatial)
                kwargs["_random_samples"] = empty.uniform_()
        return function(input, *args, **kwargs)

    return call


def _drawing_basis(function: Callable[..., Any]) -> Callable[..., Any]:
    """A basis of the range of A - M, found by q random columns and iterated."""

    @functools.wraps(function)
    def call(
        A: torch.Tensor,
        q: int,
        niter: int | None = 2,
        M: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not _C.is_dtensor(A):
            return function(A, q, niter, M)
        matrix = A if M is None else A - M
        columns = matrix.detach().new_empty(matrix.shape[-1], q).normal_()
        basis = torch.linalg.qr(matrix @ columns).Q
        for _ in range(2 if niter is None else niter):
            basis = torch.linalg.qr(matrix.mH @ basis).Q
            basis = torch.linalg.qr(matrix @ basis).Q
        return basis

    return call


def _without_chunks(chunked: Callable[..., Any]) -> Callable[..., Any]:
    """For the ops of linear_cross_entropy: one returns the loss of each sample,
    the other a tuple that begins with the reduced loss.
    """

    def call(
        input: torch.Tensor,
        linear_weight: torch.Tensor,
        target: torch.Tensor,
        linear_bias: torch.Tensor | None,
        weight: torch.Tensor | None,
        *options: Any,
    ) -> Any:
        tensors = (input, linear_weight, target, linear_bias, weight)
        if not any(t is not None and _C.is_dtensor(t) for t in tensors):
            return chunked(*tensors, *options)
        reduces = isinstance(options[0], str)
        loss = torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(input, linear_weight, linear_bias),
            target,
            weight,
            reduction=options[0] if reduces else "none",
            ignore_index=options[1] if reduces else options[0],
        )
        return (loss,) if reduces else loss

    return call


def _reduced(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not _C.is_dtensor(value):
        return value
    placements = [Replicate() if p.is_partial() else p for p in value.placements]
    return value.redistribute(value.device_mesh, placements)


def _reducing(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a function that writes, in place, what is not linear in its arguments."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(
            *map(_reduced, args), **{key: _reduced(v) for key, v in kwargs.items()}
        )

    return call


_FUNCTIONS = {
    torch.functional: ("_unravel_index",),
    torch.masked._ops: ("_std_var",),
    torch.masked: (
        "amax",
        "amin",
        "argmax",
        "argmin",
        "logsumexp",
        "mean",
        "median",
        "norm",
        "sum",
    ),
}


def _install_without_chunks(module: ModuleType) -> None:
    for name in (
        "_linear_cross_entropy_batch_chunked",
        "_linear_cross_entropy_batch_chunked_no_reduction",
    ):
        setattr(module, name, _without_chunks(getattr(module, name)))


def _install() -> None:
    for owner, names in _FUNCTIONS.items():
        for name in names:
            setattr(owner, name, _replicating(getattr(owner, name)))
    functional = torch.nn.functional
    functional.gaussian_nll_loss = _reducing(functional.gaussian_nll_loss)
    # Since torch 2.13.
    when_imported(
        "torch.nn.modules.linear_cross_entropy", _install_without_chunks
    )
    torch._lowrank.get_approximate_basis = _drawing_basis(
        torch._lowrank.get_approximate_basis
    )
    for spatial in (2, 3):
        name = f"fractional_max_pool{spatial}d"
        setattr(functional, name, _drawing(getattr(functional, name), spatial))


_install()
