"""torch.distributed.checkpoint, as far as it meets distributed tensors.

Its state_dict functions know torch's own DTensor and would take ours for plain
tensors: with full_state_dict=True a rank would save its shard for the whole.
Here they get whole tensors, and whole tensors are laid out when they are set.
Reading and writing files of its own format is refused.
"""

import functools
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from tessera import _C
from tessera._late import replace, when_imported


def _whole(value: Any, keep: bool, cpu_offload: bool) -> Any:
    """The plain value of a distributed tensor. Communicates."""
    if not _C.is_dtensor(value):
        return value
    whole = _C.full_tensor(value.detach())
    if not keep:
        return whole.new_empty(0)
    return whole.cpu() if cpu_offload else whole


def _wrap_gather(plain: Any) -> Any:
    @functools.wraps(plain)
    def gather(state_dict: Any, **options: Any) -> Any:
        ranks = options.get("ranks_only", ())
        keep = not ranks or dist.get_rank(options.get("pg")) in ranks
        offload = options.get("cpu_offload", False)
        with torch.no_grad():
            whole = pytree.tree_map_only(
                torch.Tensor,
                lambda value: _whole(value, keep, offload),
                state_dict,
            )
        return plain(whole, **options)

    return gather


def _wrap_set(plain: Any) -> Any:
    """For functions that put whole tensors into `local_state_dict`."""

    @functools.wraps(plain)
    def put(
        full_state_dict: Any, local_state_dict: Any, *args: Any, **options: Any
    ) -> Any:
        ours = {
            key: value
            for key, value in local_state_dict.items()
            if _C.is_dtensor(value)
        }
        result = plain(full_state_dict, local_state_dict, *args, **options)
        for key, tensor in ours.items():
            value = local_state_dict.get(key)
            if isinstance(value, torch.Tensor) and not _C.is_dtensor(value):
                # Every rank has the whole by now.
                local_state_dict[key] = _C.distribute_tensor(
                    value.detach(), tensor.device_mesh, tensor.placements, True
                )
        return result

    return put


def _change_state_dict_utils(module: ModuleType) -> None:
    replace(module, "_gather_state_dict", _wrap_gather)
    replace(module, "_distribute_state_dict", _wrap_set)
    replace(module, "_broadcast_state_dict", _wrap_set)
    replace(module, "_create_cpu_state_dict", _wrap_refuse_all)


def _refuse(name: str, tensor: torch.Tensor) -> None:
    raise NotImplementedError(
        f"[torch.distributed.checkpoint] {name} is a distributed tensor "
        f"(DTensor) of tessera: {_C.layout_text(tensor)}. Its files cannot hold "
        "one: use tessera.checkpoint.save and load, or save the state dict that "
        "get_model_state_dict gives with full_state_dict=True"
    )


def _wrap_refuse(plain: Any) -> Any:
    """For functions of a name and, last, the object to save or load."""

    @functools.wraps(plain)
    def create_items(fqn: str, *args: Any, **options: Any) -> Any:
        for value in (*args, *options.values()):
            if _C.is_dtensor(value):
                _refuse(f"'{fqn}'", value)
        return plain(fqn, *args, **options)

    return create_items


def _wrap_refuse_all(plain: Any) -> Any:
    """For functions of a whole state dict."""

    @functools.wraps(plain)
    def create(state_dict: Any, *args: Any, **options: Any) -> Any:
        for path, value in pytree.tree_flatten_with_path(state_dict)[0]:
            if _C.is_dtensor(value):
                _refuse(pytree.keystr(path), value)
        return plain(state_dict, *args, **options)

    return create


def _change_planner_helpers(module: ModuleType) -> None:
    replace(module, "_create_write_items", _wrap_refuse)
    replace(module, "_create_read_items", _wrap_refuse)


when_imported("torch.distributed._state_dict_utils", _change_state_dict_utils)
when_imported(
    "torch.distributed.checkpoint.planner_helpers", _change_planner_helpers
)
