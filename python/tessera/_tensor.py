"""DTensor: the class by which Python asks whether a tensor is distributed.

Distributed tensors are made by C++ and are objects of torch.Tensor (or
torch.nn.Parameter), like every result of a torch operation. DTensor has no
objects of its own: isinstance asks C++, and its methods are attributes of
torch.Tensor that plain tensors seem not to have.
"""

import functools
from typing import Any

import torch

from tessera import _C
from tessera._pickle import reduce_dtensor
from tessera.placement_types import Replicate

__all__ = ["DTensor"]


class _DTensorMeta(torch._C._TensorMeta):
    def __instancecheck__(cls, instance: Any) -> bool:
        return _C.is_dtensor(instance)


class DTensor(torch.Tensor, metaclass=_DTensorMeta):
    """A tensor laid out over a mesh of ranks.

    Make one with distribute_tensor, DTensor.from_local or a factory.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "DTensor":
        raise TypeError(
            "[DTensor] a distributed tensor is made with distribute_tensor, "
            "DTensor.from_local or a factory such as zeros, not with DTensor()"
        )

    # As it is: a function of Python's around it would double its time.
    from_local = staticmethod(_C.from_local)


def _text(tensor: torch.Tensor) -> str:
    """The layout and the shards that live here. Does not communicate."""
    mesh = tensor.device_mesh
    lines = [f"DTensor({_C.layout_text(tensor)}"]
    if tensor.grad_fn is not None:
        lines[0] += f", grad_fn=<{tensor.grad_fn.name()}>"
    elif tensor.requires_grad:
        lines[0] += ", requires_grad=True"
    lines[0] += ")"
    # Printing sends nothing: other ranks may not print.
    if _C.reading_sends(tensor) and len(mesh.local_ranks) < mesh.size():
        lines.append(
            "a view of a sharded dimension, copied when every rank reads it"
        )
        return "\n".join(lines)
    with torch.no_grad():
        local = tensor.shards()
    for rank, shard in zip(mesh.local_ranks, local):
        lines.append(f"rank {rank}: {shard}")
    return "\n".join(lines)


def _deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        copy = tensor.detach().clone()
    copy.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        copy.grad = tensor.grad.__deepcopy__(memo)
    memo[id(tensor)] = copy
    return copy


def _new(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The old constructor, as SparseAdam uses it: new(indices, values, size)."""
    if tensor.is_sparse and len(args) > 1:
        return torch.sparse_coo_tensor(*args, **kwargs)
    raise NotImplementedError(
        "[new] this constructor is not there for distributed tensors: use "
        "new_empty(size) or new_zeros(size)"
    )


_torch_register_hook = torch.Tensor.register_hook


def _register_hook(tensor: torch.Tensor, hook: Any) -> Any:
    # The first hook clears what C++ has put on the leaf.
    handle = _torch_register_hook(tensor, hook)
    _C.keep_grad_layout(tensor)
    return handle


def _new_tensor(
    tensor: torch.Tensor,
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Replicated, like what new_full makes: every rank is given the same data.

    Plain where another device is asked for than that of the mesh.
    """
    dtype = dtype or tensor.dtype
    device = torch.device(device) if device is not None else tensor.device
    mesh = tensor.device_mesh
    if isinstance(data, torch.Tensor) and _C.is_dtensor(data):
        value = data.detach().clone().to(device=device, dtype=dtype)
    else:
        value = torch.tensor(data, dtype=dtype, device=device, **options)
        if device.type == mesh.device_type:
            value = _C.from_local(value, mesh, [Replicate()] * mesh.ndim)
    return value.requires_grad_(requires_grad)


def _extend(name: str, for_distributed: Any, leaves_only: bool = False) -> None:
    """Gives a method of torch.Tensor another body for distributed tensors."""
    plain = getattr(torch.Tensor, name)

    @functools.wraps(plain)
    def method(self, *args, **kwargs):
        if _C.is_dtensor(self) and (self.is_leaf or not leaves_only):
            return for_distributed(self, *args, **kwargs)
        return plain(self, *args, **kwargs)

    setattr(torch.Tensor, name, method)


_METHODS = {
    "redistribute": _C.redistribute,
    "to_local": _C.to_local,
    "full_tensor": _C.full_tensor,
    "shards": _C.shards,
    "shard": _C.shard,
    "reading_sends": _C.reading_sends,
    "local_range": _C.local_range,
    "owners": _C.owners,
}
_PROPERTIES = {
    "device_mesh": _C.device_mesh,
    "placements": _C.placements,
    "_local_tensor": _C.to_local,
    "_spec": _C.spec,
}
# What torch.Tensor gets, only for distributed tensors.
ATTRIBUTES = (*_METHODS, *_PROPERTIES)


def _install() -> None:
    for name, function in _METHODS.items():
        setattr(torch.Tensor, name, _C.tensor_method(function, name))
    for name, function in _PROPERTIES.items():
        setattr(torch.Tensor, name, _C.tensor_property(function, name))
    _extend(
        "__repr__",
        lambda self, *, tensor_contents=None: tensor_contents or _text(self),
    )
    # torch refuses to copy what is no leaf, whatever it is.
    _extend("__deepcopy__", _deepcopy, leaves_only=True)
    _extend("new", _new)
    _extend("register_hook", _register_hook, leaves_only=True)
    _extend("new_tensor", _new_tensor)
    _extend("tolist", lambda self: self.full_tensor().tolist())
    _extend("_reduce_ex_internal", lambda self, proto: reduce_dtensor(self))


_install()
