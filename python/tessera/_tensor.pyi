from collections.abc import Sequence
from typing import Any

import torch

from tessera._C import DeviceMesh, DTensorSpec, Placement

ATTRIBUTES: tuple[str, ...]

class DTensor(torch.Tensor):
    @staticmethod
    def from_local(
        local_tensor: torch.Tensor | Sequence[torch.Tensor],
        device_mesh: Any = None,
        placements: Sequence[Any] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        uneven: bool = False,
    ) -> DTensor: ...
    @property
    def device_mesh(self) -> DeviceMesh: ...
    @property
    def placements(self) -> tuple[Placement, ...]: ...
    @property
    def _spec(self) -> DTensorSpec: ...
    @property
    def _local_tensor(self) -> torch.Tensor: ...
    def redistribute(
        self,
        device_mesh: Any = None,
        placements: Sequence[Any] | None = None,
        *,
        async_op: bool = False,
    ) -> DTensor: ...
    def to_local(
        self, *, grad_placements: Sequence[Any] | None = None
    ) -> torch.Tensor: ...
    def full_tensor(
        self, *, grad_placements: Sequence[Any] | None = None
    ) -> torch.Tensor: ...
    def shards(
        self, *, grad_placements: Sequence[Any] | None = None
    ) -> list[torch.Tensor]: ...
    def shard(self, rank: int) -> torch.Tensor: ...
    def reading_sends(self) -> bool: ...
    def local_range(self, dim: int = 0, rank: int | None = None) -> range: ...
    def owners(self, index: int, dim: int = 0) -> list[int]: ...
