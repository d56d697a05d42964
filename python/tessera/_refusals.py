"""What cannot work on distributed tensors says so, and plain ones are spared.

torch.compile, torch.export and FakeTensorMode describe a tensor by its storage.
A distributed tensor has none: it would be refused there too, but in words that
do not say what was tried. DistributedDataParallel would average gradients that
are whole already. torch.vmap makes plain tensors of its own for some ops, which
nobody who reads the error has seen.
"""

import functools
import sys
from typing import Any

import torch
import torch._functorch.apis
from torch._subclasses.fake_tensor import FakeTensorConverter

from tessera import _C
from tessera._tensor import ATTRIBUTES


def _attempt() -> str:
    if torch._guards.TracingContext.try_get() is not None:
        return "torch.compile"
    return "FakeTensorMode"


def _hide_attributes() -> None:
    """Compiled code is told that plain tensors do not have our attributes.

    torch.compile takes what is on the class torch.Tensor when it is first used
    for what every tensor has, and does not ask the tensor.
    """
    module = sys.modules.get("torch._dynamo.variables.tensor")
    known = getattr(module, "all_tensor_attrs", {})
    for name in ATTRIBUTES:
        known.pop(name, None)


def _refuse_data_parallel(plain: Any) -> Any:
    @functools.wraps(plain)
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        for name, tensor in module.named_parameters():
            if _C.is_dtensor(tensor):
                raise NotImplementedError(
                    f"[DistributedDataParallel] parameter '{name}' is a "
                    f"distributed tensor (DTensor): {_C.layout_text(tensor)}. "
                    "Data parallel is distribute_module(module, mesh), which "
                    "replicates the parameters, and a batch that is sharded: "
                    "distribute_tensor(batch, mesh, [Shard(0)])"
                )
        plain(self, module, *args, **kwargs)

    return init


def _explain_mixing(plain: Any) -> Any:
    """In vmap a plain tensor that met a distributed one may not be the caller's."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except RuntimeError as error:
            text = str(error)
            if "got mixed torch.Tensor and DTensor" in text and (
                "torch.vmap" not in text
            ):
                error.args = (
                    f"{text} Under torch.vmap it may be a tensor that torch "
                    "itself made for the op, such as the weight of a batch "
                    "norm: it is the same on every rank, so that the scope "
                    "serves the call",
                )
            raise

    return call


def _install() -> None:
    torch._functorch.apis.vmap_impl = _explain_mixing(
        torch._functorch.apis.vmap_impl
    )
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel.__init__ = _refuse_data_parallel(parallel.__init__)
    plain = FakeTensorConverter.from_real_tensor

    @functools.wraps(plain)
    def from_real_tensor(
        self: Any, fake_mode: Any, t: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if _C.is_dtensor(t):
            raise NotImplementedError(
                f"[{_attempt()}] a distributed tensor (DTensor) cannot be "
                f"traced: got {_C.layout_text(t)}. Do not compile it, or "
                "call what is compiled with plain tensors: to_local(), "
                "shard(rank) or full_tensor() give them"
            )
        # Whatever is compiled comes by here first.
        _hide_attributes()
        return plain(self, fake_mode, t, *args, **kwargs)

    FakeTensorConverter.from_real_tensor = from_real_tensor


_install()
