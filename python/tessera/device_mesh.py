"""Ranks in an n-d grid."""

from tessera._C import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]

DeviceMesh.__module__ = __name__
