"""Batches: every worker draws all of a batch, keeps its block of each tensor, and all compare what they have drawn.

    as many dims as the grid has axes     cut along all of them
    one fewer, and no channels are cut    cut along the others: labels without a channel dim
    anything else                         whole on every worker

Where a tensor lies decides what is moved, and never a number: it is one global tensor in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import xxhash
from torch import Tensor

from ...comm.agreement import gather_lines, key_of, opening
from ...errors import DataError, PartitionError, UnsupportedError
from ...grid import Grid
from ...models.inputs import Inputs
from ...models.recording.containers import Branch, Constant, Tree, flatten, unflatten
from ...partition import CartesianPartition, Partition, local_slice
from .stand_ins import StandIn

WHAT = "a batch of GridStrategy"
PLAIN = (bool, int, float, complex, type(None))
"""Values of a batch that may decide what a step does; each is recorded separately."""


def partition_of(dim: int, P_x: CartesianPartition) -> Partition:
    """Where a tensor of a batch with `dim` dims lies."""
    if dim == P_x.dim:
        return P_x
    if dim == P_x.dim - 1 > 0 and P_x.shape[1] == 1:
        return CartesianPartition(P_x.transport, Grid(P_x.ranks, (P_x.shape[0], *P_x.shape[2:])))
    return Partition(P_x.transport, P_x.geometry)


def cut(batch: Any, P_x: CartesianPartition, device: torch.device) -> Any:
    """This worker's part of a batch, on its device."""
    tensors, tree = flatten(batch)
    if not any(x.dim() == P_x.dim for x in tensors):
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors) or "none"
        raise PartitionError(
            f"GridStrategy: no tensor of the batch has {P_x.dim} dims, as many as the grid {P_x.shape} has axes; its shapes: "
            f"{shapes}.",
            fix="a grid with an axis for each dim of the input, the batch included: grid=(1, 1, 2, 2) for images.",
        )
    return unflatten(tree, [_own(x, P_x).to(device, non_blocking=True) for x in tensors])


def _own(x: Tensor, P_x: CartesianPartition) -> Tensor:
    x = x.detach().as_subclass(Tensor)
    P = partition_of(x.dim(), P_x)
    return x[local_slice(P, x.shape)].contiguous() if isinstance(P, CartesianPartition) else x


def check_same(batch: Any, P_x: Partition) -> None:
    """Raise on all workers if they have drawn different batches; one small message."""
    if len(P_x.team) == 1:
        return
    text = ", ".join(f"{tuple(x.shape)} {x.dtype} {_digest(x):x}" for x in flatten(batch)[0])
    found = opening(P_x.transport, P_x.team, WHAT, key_of(WHAT), key_of(text))
    if not found.is_common:
        raise DataError(
            f"the workers have drawn different batches.\n  {chr(10).join(gather_lines(P_x.transport, P_x.team, text))}\n"
            "  fix: lightning.seed_everything(seed) on all workers before the data are made, or a generator with one seed for "
            "a shuffled DataLoader; no DistributedSampler."
        )


def _digest(x: Tensor) -> int:
    return xxhash.xxh3_64_intdigest(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


class NotRecorded(StandIn):
    """Stands, while a step is recorded, for a value that differs from batch to batch, as a name of a file does."""

    def __init__(self, place: int, value: object) -> None:
        self.place, self.kind = place, type(value).__name__

    def __repr__(self) -> str:
        return f"value {self.place} of the batch, a {self.kind}"

    def _refuse(self, *_: object) -> NoReturn:
        raise UnsupportedError(
            f"the step uses {self!r}, and a step is recorded once for all batches.\n  fix: return it from the step, which "
            "gives back that of each batch; use it in a hook such as on_validation_batch_end; or make it a tensor."
        )


class Placeholders:
    """A batch with `NotRecorded` in the place of what is not recorded, and back; one for each step."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], NotRecorded] = {}

    def put(self, batch: Any) -> tuple[Any, list[Any]]:
        """The batch with placeholders, and the values that they replace."""
        tensors, tree = flatten(batch)
        values: list[Any] = []
        return unflatten(self._mapped(tree, values), tensors), values

    def _mapped(self, tree: Tree, values: list[Any]) -> Tree:
        def place(value: Any) -> Any:
            if isinstance(value, PLAIN):
                return value
            if type(value) in (list, tuple):
                return type(value)(map(place, value))
            if type(value) is dict:
                return {key: place(part) for key, part in value.items()}
            values.append(value)
            return self._made.setdefault((len(values) - 1, type(value).__name__), NotRecorded(len(values) - 1, value))

        return _with_constants(tree, place)

    @staticmethod
    def back(result: Any, values: list[Any]) -> Any:
        """What a step has returned, with the values of this batch in place of the placeholders."""

        def find(value: Any) -> Any:
            if isinstance(value, NotRecorded):
                return values[value.place]
            if type(value) in (list, tuple):
                return type(value)(map(find, value))
            return {key: find(part) for key, part in value.items()} if type(value) is dict else value

        tensors, tree = flatten(result)
        return unflatten(_with_constants(tree, find), tensors)


def _with_constants(tree: Tree, change: Callable[[Any], Any]) -> Tree:
    """The same containers with `change` of each value that is no tensor."""
    if isinstance(tree, Branch):
        parts = tuple([_with_constants(part, change) for part in tree.parts])
        attributes = tuple([(name, _with_constants(part, change)) for name, part in tree.attributes])
        return Branch(tree.kind, tree.keys, parts, attributes)
    return Constant(change(tree.value)) if isinstance(tree, Constant) else tree


class StepInputs(Inputs):
    """The arguments of a step: a batch, whose tensors lie where `partition_of` says, and plain values."""

    def _placed(self, key: str, value: object, first: Tensor | None) -> list[Partition] | str:
        assert isinstance(self.P_x, CartesianPartition)
        return [partition_of(x.dim(), self.P_x) for x in flatten(value, once=False)[0]]
