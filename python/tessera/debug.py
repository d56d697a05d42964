"""Seeing what happens: communication counted, layouts drawn and explained."""

from tessera._debug import (
    CommDebugMode,
    CommRecord,
    explain,
    sharding_svg,
    sharding_text,
    visualize_sharding,
)

__all__ = [
    "CommDebugMode",
    "CommRecord",
    "explain",
    "sharding_svg",
    "sharding_text",
    "visualize_sharding",
]

# Where they are found.
for _object in (
    CommDebugMode,
    CommRecord,
    explain,
    sharding_svg,
    sharding_text,
    visualize_sharding,
):
    _object.__module__ = __name__
