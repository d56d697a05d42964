"""Where torch.distributed.tensor keeps implicit_replication."""

from tessera._distribute import implicit_replication

__all__ = ["implicit_replication"]

implicit_replication.__module__ = __name__
