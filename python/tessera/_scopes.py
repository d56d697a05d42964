"""Scopes that say how much ops may do by themselves."""

from tessera._C import ExplicitCommunication, Strict

__all__ = ["explicit_communication", "strict"]


def strict() -> Strict:
    """In this scope, an op without a sharding rule raises.

    Outside it runs on gathered inputs, with a warning. The scope holds for all
    threads; TESSERA_STRICT=1 in the environment is one around the program.

    with strict():
        loss = model(batch)
        loss.backward()
    """
    return Strict()


def explicit_communication() -> ExplicitCommunication:
    """In this scope, an op that would move its arguments between ranks raises.

    The error names the op, the argument, the steps and the bytes. Every
    collective is then one that the program wrote. The gradient of a leaf still
    comes in the leaf's layout. The scope holds for all threads.

    with explicit_communication():
        y = x.redistribute(mesh, [Replicate()]) @ w
    """
    return ExplicitCommunication()
