"""The tape: what recording writes and replaying reads.

    Node    one operator: its arguments, its mark (where in the random numbers it started), and when it ran
    Value   a tensor as some node made it; stands for it among the arguments of later nodes
    Cell    a storage: the values that are views of it share the cell, which lists the nodes that wrote to it

There is no list of all nodes. A value refers to its cell and to the node that made it, and these to earlier nodes, so
Python's garbage collection frees what no tensor needs any more.
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
from gridwise.torch_internals.tensors import version_of

_clock = itertools.count(1)


class Cell:
    """A storage that does not exist yet."""

    __slots__ = ("made", "resized", "writes")

    def __init__(self) -> None:
        self.writes: list[TapeNode] = []  # in order of time; the first made it
        self.resized = False  # its size has changed, so no write counts as overwriting all earlier ones
        self.made: StorageWeakRef | None = None  # the real storage, once it exists


class Value:
    """A tensor that does not exist yet."""

    __slots__ = ("cell", "is_whole", "meta", "node")

    def __init__(self, cell: Cell, node: TapeNode, meta: Tensor, is_whole: bool = False) -> None:
        self.cell = cell
        self.node = node
        self.meta = meta  # its geometry
        self.is_whole = is_whole  # known to cover all of its storage, in order


@dataclass(frozen=True, slots=True)
class External:
    """A real tensor among the arguments, which must not change before it is replayed."""

    tensor: Tensor
    version: int
    digest: int | None  # of memory that others, such as numpy, can write to without changing the version

    @classmethod
    def of(cls, tensor: Tensor) -> External:
        return cls(tensor, version_of(tensor), _digest(tensor) if _is_borrowed(tensor) else None)

    def checked(self) -> Tensor:
        """The tensor; raises if it has changed."""
        if version_of(self.tensor) != self.version:
            how = f"updated in-place: version {self.version} then, {version_of(self.tensor)} now"
        elif self.digest is not None and self.digest != _digest(self.tensor):
            how = "changed through other references to its memory, such as a numpy array"
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
        self.overwrites = False  # fills a whole storage without reading it
        self.grad_enabled = torch.is_grad_enabled()
        self.default_dtype = torch.get_default_dtype()

    def inputs(self) -> list[Value]:
        """The values among its arguments."""
        return [item for item in leaves(self.args, self.kwargs) if isinstance(item, Value)]

    def output(self, cell: Cell, meta: Tensor, is_whole: bool = False) -> Value:
        """Add a value that this node made."""
        value = Value(cell, self, meta, is_whole)
        self.outputs.append(value)
        return value
