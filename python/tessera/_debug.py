"""Seeing what happens: communication counted, layouts drawn and explained."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives  # registers the keys of the counts
from torch.utils import _pytree as pytree

from tessera import _C, _module_paths
from tessera._C import CommRecord

__all__ = [
    "CommDebugMode",
    "CommRecord",
    "explain",
    "sharding_svg",
    "sharding_text",
    "visualize_sharding",
]


def _op_of(collective: str) -> Any:
    """The op by which torch's CommDebugMode counts such a collective."""
    functional, c10d = torch.ops.c10d_functional, torch.ops.c10d
    ops = {
        "all_reduce": functional.all_reduce,
        "all_gather": functional.all_gather_into_tensor,
        "reduce_scatter": functional.reduce_scatter_tensor,
        "all_to_all": functional.all_to_all_single,
        "all_to_all_rows": functional.all_to_all_single,
        "broadcast": c10d.broadcast_,
        "scatter": c10d.scatter_,
    }
    # What torch has no op for keeps its name.
    return ops.get(collective, collective)


class CommDebugMode:
    """Counts the collectives of a scope, forward and backward.

    What was counted can be read in the scope and after it. Scopes nest. Each
    record names the op, the module, the pass and the layouts of the op's
    arguments.

        with CommDebugMode() as comm:
            loss = model(batch).sum()
            loss.backward()
        comm.get_comm_counts()[torch.ops.c10d_functional.all_reduce]
        print(comm.generate_comm_debug_tracing_table())
    """

    def __init__(self) -> None:
        self._counter = _C.CommCounter()

    def __enter__(self) -> "CommDebugMode":
        self._counter.__enter__()
        _module_paths.follow()
        return self

    def __exit__(self, *exception: object) -> None:
        self._counter.__exit__(*exception)
        _module_paths.unfollow()

    def get_records(self) -> list[CommRecord]:
        """By op, module, pass, collective and layouts, in order of appearance."""
        return self._counter.records()

    def get_total_counts(self) -> int:
        """How many collectives were issued."""
        return sum(record.count for record in self.get_records())

    def get_total_bytes(self) -> int:
        """How many bytes this rank sent (rank 0, in a simulated world)."""
        return sum(record.bytes for record in self.get_records())

    def get_comm_counts(self) -> dict[Any, int]:
        """By collective, keyed as torch's: torch.ops.c10d_functional.*."""
        return self._sum_by_collective("count")

    def get_comm_bytes(self) -> dict[Any, int]:
        """The bytes sent, with the keys of get_comm_counts."""
        return self._sum_by_collective("bytes")

    def get_comm_bytes_by_rank(self) -> dict[int, int]:
        """The bytes that each rank sent: all ranks of a simulated world."""
        sums: dict[int, int] = {}
        for record in self.get_records():
            for rank, sent in record.bytes_by_rank.items():
                sums[rank] = sums.get(rank, 0) + sent
        return sums

    def generate_comm_debug_tracing_table(self) -> str:
        """A table of the records, as text."""
        return self._counter.table()

    def __repr__(self) -> str:
        return (
            f"CommDebugMode(get_total_counts()={self.get_total_counts()}, "
            f"get_total_bytes()={self.get_total_bytes()})"
        )

    def _sum_by_collective(self, field: str) -> dict[Any, int]:
        sums: dict[Any, int] = _Counts()
        for record in self.get_records():
            sums[_op_of(record.collective)] += getattr(record, field)
        return sums


class _Counts(dict[Any, int]):
    """What was not issued was issued 0 times."""

    def __missing__(self, key: Any) -> int:
        return 0


def explain(
    op: str | Callable[..., Any], *arguments: Any, **options: Any
) -> str:
    """How the layout of a call comes about: rows, prices, the choice.

    `op` is an op's name, as in "aten::mm", an op (torch.ops.aten.mm.default), or
    anything that is called with tensors: torch.mm, torch.nn.functional.mse_loss,
    a module, a function of your own. What is composed of other ops is called
    with tensors of the same layouts that hold no data, and each op that it runs
    is explained. Nothing is computed or sent.
    """
    if isinstance(op, str):
        name = op
    elif isinstance(op, torch._ops.OpOverload):
        name = op.name()
    elif isinstance(op, torch._ops.OpOverloadPacket):
        name = op._qualified_op_name
    elif callable(op):
        return _explain_call(op, arguments, options)
    else:
        raise TypeError(
            "[explain] expected the name of an op or something to call, got "
            f"{type(op).__name__}"
        )
    if options:
        if isinstance(op, str):
            raise TypeError(
                "[explain] the arguments of an op that is given by its name are "
                f"given in order, without names; got {', '.join(options)}"
            )
        return _explain_call(op, arguments, options)
    return _C.explain(name, *arguments)


def _explain_call(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    state: dict[str, torch.Tensor] = {}
    if isinstance(function, torch.nn.Module):
        state = dict(function.named_parameters(remove_duplicate=False))
        state.update(function.named_buffers(remove_duplicate=False))
    given, structure = pytree.tree_flatten((state, arguments, options))
    places = [i for i, v in enumerate(given) if isinstance(v, torch.Tensor)]

    def call(tensors: list[torch.Tensor]) -> None:
        values = list(given)
        for place, tensor in zip(places, tensors):
            values[place] = tensor
        state, arguments, options = pytree.tree_unflatten(values, structure)
        if isinstance(function, torch.nn.Module):
            torch.func.functional_call(function, state, arguments, options)
        else:
            function(*arguments, **options)

    return _C.explain_call(name, call, [given[place] for place in places])


def sharding_text(dtensor: torch.Tensor) -> str:
    """A picture of who holds what, as text."""
    return _C.visualize_sharding(dtensor)


def sharding_svg(dtensor: torch.Tensor) -> str:
    """A picture of who holds what, as an SVG document."""
    return _C.visualize_sharding_svg(dtensor)


def visualize_sharding(
    dtensor: torch.Tensor, header: str = "", use_rich: bool = False
) -> None:
    """Prints who holds what. `use_rich` is there only for torch's sake."""
    del use_rich
    if header:
        print(header)
    print(sharding_text(dtensor))
