"""Where a tensor of the graph lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...partition import Partition


@dataclass(frozen=True)
class OnGrid:
    """A tensor in the graph: its partition, and whether its extents are its own (adaptive pooling) or the input's."""

    P: Partition
    pooled: bool = False

    def is_cut(self, dims: Iterable[int]) -> bool:
        return any(self.P.shape[d] > 1 for d in dims)

    @property
    def by_batch(self) -> OnGrid:
        """With all workers along the batch."""
        return replace(self, P=self.P.create_cartesian_topology_partition((self.P.size, *(1,) * (self.P.dim - 1))))

    def reshaped(self, shape: tuple[int, ...]) -> OnGrid:
        return replace(self, P=self.P.create_cartesian_topology_partition(shape))
