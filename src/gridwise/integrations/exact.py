"""A model that takes whole tensors and returns whole tensors, computed by tiles or on a grid of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import PartitionError, UnsupportedError
from ..models import distribute
from ..models.recording.containers import flatten, unflatten
from ..nn.functional import all_gather
from ..partition import Partition, PartitionLike, as_partition, local_slice
from ..tiles import tiled

Function = Callable[..., Any]


def exact(
    model: torch.nn.Module | Function, memory: str | int | None, P_x: PartitionLike | None, **options: Any
) -> Function:
    """The model by tiles within `memory`, with the `options` of `tiled`; or, given a partition, on its grid."""
    if P_x is None:
        return tiled(model, memory, **options)
    given = [name for name, value in {"memory": memory, **options}.items() if value is not None]
    if given:
        raise PartitionError(
            f"`P_x` puts the model on a grid of workers, and {', '.join(map(repr, given))} asks for tiles on one device.",
            fix="give one of the two.",
        )
    return OnGrid(model, as_partition(P_x, "exact"))


class OnGrid:
    """A model on a grid, called with the whole input on every worker, all of which get the whole result."""

    def __init__(self, model: torch.nn.Module | Function, P_x: Partition) -> None:
        self.model, self.P_x = distribute(model, P_x), P_x

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dim() != self.P_x.dim:
            raise PartitionError(
                f"an input of {x.dim()} dims cannot be cut by `P_x` of shape {self.P_x.shape}.",
                fix="a partition with an axis for each dim of the input.",
            )
        blocks = self.model(x[local_slice(self.P_x, x.shape)], *args, **kwargs)
        leaves, tree = flatten(blocks, once=False)
        partitions, _ = flatten(self.model.P_y, lambda value: isinstance(value, Partition), once=False)
        places = iter(partitions)  # scalars have none: every worker holds them
        return unflatten(tree, [self._whole(y, next(places)) if y.dim() else y for y in leaves])

    def _whole(self, y: Tensor, P_y: Partition) -> Tensor:
        if {*P_y.ranks} != {*self.P_x.ranks}:
            raise UnsupportedError(
                f"an output lies on workers {sorted(P_y.ranks)}, and the input on {sorted(self.P_x.ranks)}.",
                fix="gridwise.distribute, whose `P_y` says where each output lies.",
            )
        return all_gather(y, P_y, range(P_y.dim))
