"""Where torch.distributed.tensor keeps implicit_replication."""

from tessera._C import ImplicitReplication

__all__ = ["implicit_replication"]


def implicit_replication() -> ImplicitReplication:
    """In this scope, plain tensors among distributed ones are replicated.

    with implicit_replication():
        y = distributed + plain
    """
    return ImplicitReplication()
