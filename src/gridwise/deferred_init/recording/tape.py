"""What was done to a tensor: the record that recording writes and replaying reads.

    Node    one operator, its arguments, the place in the random numbers where it began, and when it ran
    Value   a tensor as some node made it; what stands in for it among the arguments of later nodes
    Cell    a storage: the values that are views of it share the cell, which lists the nodes that wrote to it

There is no list of all nodes: a value leads to its cell and to the node that made it, these to the nodes before, so
what no tensor needs any more is garbage like anything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gridwise.deferred_init.random.streams import Mark
from gridwise.errors import DeferredInitError
from gridwise.fake.nested import Args, Kwargs, leaves

_clock = itertools.count(1)


class Cell:
    """A storage that is not there yet."""

    __slots__ = ("made", "resized", "writes")

    def __init__(self) -> None:
        self.writes: list[TapeNode] = []  # in order of time; the first made it
        self.resized = (
            False  # the size that it was made with is not the one that it has: no write replaces those before
        )
        self.made: StorageWeakRef | None = None  # the real storage, once there is one


class Value:
    """A tensor that is not there yet."""

    __slots__ = ("cell", "is_whole", "meta", "node")

    def __init__(self, cell: Cell, node: TapeNode, meta: Tensor, is_whole: bool = False) -> None:
        self.cell = cell
        self.node = node
        self.meta = meta  # its geometry
        self.is_whole = is_whole  # known to be all of its storage, in order


@dataclass(frozen=True, slots=True)
class External:
    """A real tensor that took part; it must still be what it was."""

    tensor: Tensor
    version: int
    digest: int | None  # of memory that numpy or others write to without torch's knowing

    @classmethod
    def of(cls, tensor: Tensor) -> External:
        return cls(tensor, tensor._version, _digest(tensor) if _is_borrowed(tensor) else None)

    def checked(self) -> Tensor:
        """The tensor; raises if it was changed."""
        if self.tensor._version != self.version:
            how = f"updated in-place: version {self.version} then, {self.tensor._version} now"
        elif self.digest is not None and self.digest != _digest(self.tensor):
            how = "changed by others that hold its memory, a numpy array say"
        else:
            return self.tensor
        raise DeferredInitError(
            f"A tensor of size {tuple(self.tensor.shape)} that the constructor used was {how}. "
            "Materialization cannot be performed.",
            fix="give the constructor a copy of it (`tensor.clone()`, `torch.tensor(array)`), or materialise before.",
        )


def _is_borrowed(tensor: Tensor) -> bool:
    ordinary = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return ordinary and tensor.device.type == "cpu" and not tensor.untyped_storage().resizable()


def _digest(tensor: Tensor) -> int:
    values = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return xxhash.xxh3_64_intdigest(values.view(torch.uint8).numpy().data)


class TapeNode:
    """One operator that was run on fakes."""

    __slots__ = ("args", "default_dtype", "func", "grad_enabled", "kwargs", "mark", "outputs", "overwrites", "time")

    def __init__(self, func: Callable[..., Any], args: Args, kwargs: Kwargs, mark: Mark | None = None) -> None:
        self.time = next(_clock)
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.mark = mark
        self.outputs: list[Value | None] = []
        self.overwrites = False  # fills a whole storage without looking at what was there
        self.grad_enabled = torch.is_grad_enabled()
        self.default_dtype = torch.get_default_dtype()

    def inputs(self) -> list[Value]:
        """The values among its arguments."""
        return [item for item in leaves(self.args, self.kwargs) if isinstance(item, Value)]

    def output(self, cell: Cell, meta: Tensor, is_whole: bool = False) -> Value:
        """One more value that it made."""
        value = Value(cell, self, meta, is_whole)
        self.outputs.append(value)
        return value
