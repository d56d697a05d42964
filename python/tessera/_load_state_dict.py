"""load_state_dict between plain and distributed modules and optimizers.

torch copies each tensor of a state dict into the parameter of its name. Here a
plain tensor is laid out as the parameter first, and a distributed one becomes
whole where the parameter is plain or on another mesh. Every rank calls it.
"""

import functools
from typing import Any

import torch

from tessera import _C


def _as(value: Any, own: Any) -> Any:
    """`value` so that `own` can take it. Communicates where they differ."""
    if not isinstance(value, torch.Tensor) or not isinstance(own, torch.Tensor):
        return value
    if value.shape != own.shape:
        return value  # torch says what is wrong
    to, of = _C.is_dtensor(own), _C.is_dtensor(value)
    if of and (not to or value.device_mesh != own.device_mesh):
        value, of = _C.full_tensor(value.detach()), False
    if to and not of:
        value = _C.distribute_tensor(
            value.detach().to(own.device),
            own.device_mesh,
            own.placements,
            False,
        )
    return value


def _wrap(plain: Any) -> Any:
    @functools.wraps(plain)
    def load(
        module: torch.nn.Module,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        *args: Any,
    ) -> Any:
        own = {**module._parameters, **module._buffers}
        if local_metadata.get("assign_to_params_buffers", False):
            # A plain module takes over what it is given; layouts stay.
            own = {k: v for k, v in own.items() if _C.is_dtensor(v)}
        fitting = {
            prefix + name: _as(state_dict[prefix + name], tensor)
            for name, tensor in own.items()
            if prefix + name in state_dict
        }
        changed = {
            key: value
            for key, value in fitting.items()
            if value is not state_dict[key]
        }
        if not changed:
            return plain(module, state_dict, prefix, local_metadata, *args)
        kept = {key: state_dict[key] for key in changed}
        # The very dict: modules of one's own may change it while they load.
        state_dict.update(changed)
        try:
            return plain(module, state_dict, prefix, local_metadata, *args)
        finally:
            for key, value in kept.items():
                if key in state_dict:
                    state_dict[key] = value

    return load


def _wrap_process_value(plain: Any) -> Any:
    """For the function that makes a saved value one of a parameter's state."""

    @functools.wraps(plain)
    def process(param: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        fitting = _as(value, param)
        if fitting is not value and not _C.is_dtensor(fitting):
            # The whole of a replicated tensor is one of its shards.
            fitting = fitting.clone()
        return plain(param, fitting, *args, **kwargs)

    return staticmethod(process)


torch.nn.Module._load_from_state_dict = _wrap(
    torch.nn.Module._load_from_state_dict
)
torch.optim.Optimizer._process_value_according_to_param_policy = (
    _wrap_process_value(
        torch.optim.Optimizer._process_value_according_to_param_policy
    )
)
