"""How a tensor lies over one dimension of a mesh."""

from tessera._C import (
    DTensorSpec,
    MaskPartial,
    Partial,
    Placement,
    Replicate,
    Shard,
)

__all__ = [
    "DTensorSpec",
    "MaskPartial",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
]

# Where they are found, for pickle and for readers.
for _class in (MaskPartial, Partial, Placement, Replicate, Shard):
    _class.__module__ = __name__


def _rebuild_mask_partial(offset_shape, offset_dim):
    """Unpickles one: its arguments have to be named."""
    return MaskPartial(offset_shape=offset_shape, offset_dim=offset_dim)
