"""What a worker's outputs see, and how little of it is kept for backward.

Torch saves the input of a layer for the layer's gradient. Here that is the fetched box: a copy of the own block with
halos and padding around it. The own block lives on besides, because the layer before has saved it or the user holds it.
So what torch has saved of the box is replaced:

    convolutions       by a reference to the own block and copies of what was received; the box is put together again
                       in backward, without a message
    pooling, padding   by its shape: their gradients read nothing else (maxima are found by their indices)

A saved tensor takes one pair of hooks. Under hooks of the user (`save_on_cpu`, `torch.utils.checkpoint`) those decide, and
nothing is replaced. In backward a block that was changed in place is noticed by its version, as torch does.
`keep_fetched(True)`, or `GRIDWISE_KEEP_FETCHED=on`, leaves all to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..engine.switch import Switch
from .fetch import Fetch

Call = Callable[[Tensor, tuple[int, ...]], Any]
"""What a layer makes of a tensor and of the padding that it leaves to torch: outputs, or a tuple that starts with them."""

Pad = Callable[[Tensor], Tensor]

LEAST = 1 << 20
"""How many bytes must be freed to be worth it: for smaller blocks the copy in backward takes 5 to 10 % of the layer."""

VALUES = ("Convolution",)
"""Nodes of autograd that save their input and read it in backward."""
SHAPE_ONLY = ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "ReflectionPad", "ReplicationPad")
"""Nodes that save it and read its shape alone, in backward of first and of second order."""

_keeping = Switch("GRIDWISE_KEEP_FETCHED", "off")


def keep_fetched(enabled: bool) -> AbstractContextManager[None]:
    """Keep the fetched block of every layer for backward, or not, while the body runs.

    Kept blocks save a copy in backward, about 3 % of a convolution with few channels, and take as much memory as the
    activations again.

    Examples
    --------
    >>> with gridwise.nn.keep_fetched(True):
    ...     pass  # forward passes with memory to spare
    """
    return _keeping.to(enabled)


class WindowInput:
    """A tensor that this worker's outputs are made from, as it is."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def computed(self, call: Call, padding: tuple[int, ...] = ()) -> Any:
        """``call(x, padding)``."""
        return call(self.x, padding)


class FetchedInput(WindowInput):
    """What was made of the own block `own` by `fetch`, and then, where torch pads it, by `pad`."""

    def __init__(self, own: Tensor, fetch: Fetch, box: Tensor, pad: Pad | None) -> None:
        super().__init__(box if pad is None else pad(box))
        self.own, self.fetch, self.box, self.pad = own, fetch, box, pad

    def computed(self, call: Call, padding: tuple[int, ...] = ()) -> Any:
        y = call(self.x, padding)
        made = y[0] if isinstance(y, tuple) else y
        if not _keeping.on and made.grad_fn is not None and self._is_worth_it():
            self._replace_saved(made)
        return y

    def _is_worth_it(self) -> bool:
        """Whether much is freed where others hold the own block, and more than is lost where nobody does."""
        freed = self.box.nbytes - self.fetch.received * self.box.element_size()
        return freed >= LEAST and 2 * freed >= self.own.nbytes and not self.own.is_inference()

    def _replace_saved(self, y: Tensor) -> None:
        for node in _nodes_between(y, self.box):
            name = node.name()
            if name.startswith(VALUES + SHAPE_ONLY):
                saved = node._raw_saved_input if name.startswith(VALUES) else node._raw_saved_self
                try:
                    saved.register_hooks(_Replace(self, name), _again)
                except RuntimeError as error:
                    if "hooks have already been set" not in str(error):
                        raise
                    return  # the user's

    @cached_property
    def pieces(self) -> SavedPieces:
        return SavedPieces(self.own, self.fetch, self.box)

    def made_again(self, node: str, saved: Tensor) -> Callable[[], Tensor]:
        """A function that makes `saved` again, which `node` has saved."""
        size, stride, offset, memory = saved.size(), saved.stride(), saved.storage_offset(), _memory(saved)
        # a copy, as autocast makes it, or a view of real or imaginary parts
        if memory not in (_memory(self.x), _memory(self.box)) or saved.dtype != self.box.dtype:
            return partial(check_version, saved, saved._version)
        if node.startswith(SHAPE_ONLY):
            return partial(torch.empty_strided, size, stride, dtype=saved.dtype, device=saved.device)
        pieces, pad = self.pieces, self.pad if memory == _memory(self.x) else None

        def again() -> Tensor:
            box = pieces.put_together()
            return (box if pad is None else pad(box)).as_strided(size, stride, offset)

        return again


class SavedPieces:
    """A fetched box in pieces, until it is asked for: those of the own block by reference, those received as copies.

    The box is kept then and the pieces are not, so that a block that nobody else holds is not held twice while torch works
    on the box. Mostly that is the end of both: backward frees what it has used, unless the graph is retained.
    """

    def __init__(self, own: Tensor, fetch: Fetch, box: Tensor) -> None:
        self.fetch, self.version = fetch, own._version
        self.pieces: tuple[Tensor, list[Tensor]] | None = (own.detach(), fetch.received_pieces(box.detach()))
        self.box: Tensor | None = None

    def put_together(self) -> Tensor:
        if self.box is None:
            assert self.pieces is not None
            own, received = self.pieces
            self.box = self.fetch.put_together(check_version(own, self.version), received)
            self.pieces = None
        return self.box


class _Replace:
    """The hook that is given what `node` has saved. Torch keeps it for as long as the node: it must let go of the box."""

    def __init__(self, seen: FetchedInput, node: str) -> None:
        self.seen: FetchedInput | None = seen
        self.node = node

    def __call__(self, saved: Tensor) -> Callable[[], Tensor]:
        seen, self.seen = self.seen, None
        assert seen is not None
        return seen.made_again(self.node, saved)


def _again(make: Callable[[], Tensor]) -> Tensor:
    return make()


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def check_version(x: Tensor, version: int) -> Tensor:
    """`x`, unless it has been changed in place since: then what torch says to that."""
    if x._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: the input "
            f"of a distributed layer, shape {tuple(x.shape)}, is at version {x._version}; expected version {version} "
            "instead."
        )
    return x


def _nodes_between(y: Tensor, x: Tensor) -> Iterator[Any]:
    """The nodes of autograd from `y` back to `x`: data is the first input of each, and all inputs of a concatenation."""
    first, todo = x.grad_fn, [y.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node is not first:
            yield node
            inputs = node.next_functions
            todo += [before for before, _ in (inputs if node.name().startswith("Cat") else inputs[:1])]
