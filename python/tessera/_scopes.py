"""Scopes that say how much ops may do by themselves."""

from tessera._C import Strict

__all__ = ["strict"]


def strict() -> Strict:
    """In this scope, an op without a sharding rule raises.

    Outside it runs on gathered inputs, with a warning. The scope holds for all
    threads; TESSERA_STRICT=1 in the environment is one around the program.

    with strict():
        loss = model(batch)
        loss.backward()
    """
    return Strict()
