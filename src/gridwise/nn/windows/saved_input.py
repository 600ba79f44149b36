"""The input of a worker's outputs, and what is kept of it for backward.

Torch saves the input of a layer for the layer's gradient. Here that is the fetched box: a copy of the worker's block with
halos and padding around it. The block itself mostly stays alive anyway, because the previous layer has saved it or the
user holds it. So what torch would save of the box is replaced (`torch.autograd.graph.saved_tensors_hooks`):

    convolutions       by a reference to the worker's block and copies of the received pieces; the box is assembled again
                       in backward, without a message
    pooling, padding   by its shape: their gradients read nothing else (maxima are found by their indices)

Hooks of the user (`save_on_cpu`, `torch.utils.checkpoint`) take precedence: under them nothing is replaced. Backward
notices by its version that a block was changed in place, as torch does. Most convolutions are a single node
(`conv_node`), which keeps the same pieces by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks

from ...torch_internals.tensors import version_of
from .fetch import Fetch

Call = Callable[[Tensor], Any]
"""Computes the outputs of a layer from what was fetched."""
Pad = Callable[[Tensor], Tensor]
Again = Callable[[], Tensor]
"""Makes again what torch would have saved."""

LEAST = 1 << 20
"""How many bytes must be freed to be worth it: for smaller blocks the copy in backward takes 5 to 10 % of the time."""


class WindowInput:
    """The input of this worker's outputs, saved for backward by torch as usual."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def computed(self, call: Call) -> Any:
        """``call(x)``."""
        return call(self.x)


class FetchedInput(WindowInput):
    """The `box` that `fetch` made from the worker's block `own`, padded by `pad` where torch does the padding.

    `reads_values` says whether the gradient of what is computed from it reads its values, or only its shape.
    """

    def __init__(self, own: Tensor, fetch: Fetch, box: Tensor, pad: Pad | None, reads_values: bool) -> None:
        super().__init__(box)
        self.own, self.fetch, self.box, self.pad = own, fetch, box, pad
        self.reads_values = reads_values
        self.replaces = torch.is_grad_enabled() and self._is_worth_it() and may_hook()
        if pad is not None:
            with self._replacing(values=False):
                self.x = pad(box)

    def computed(self, call: Call) -> Any:
        with self._replacing(self.reads_values):
            return call(self.x)

    def _is_worth_it(self) -> bool:
        """Whether this frees enough if the block is alive anyway, and does not cost more than it frees if it is not."""
        freed = self.fetch.bytes_freed(self.box)
        return freed >= LEAST and 2 * freed >= self.own.nbytes and not self.own.is_inference()

    def _replacing(self, values: bool) -> AbstractContextManager[Any]:
        return _replacing(self, values) if self.replaces else nullcontext()

    @cached_property
    def pieces(self) -> SavedPieces:
        return SavedPieces(self.own, self.fetch, self.box)

    def made_again(self, saved: Tensor, values: bool) -> Again:
        """A function that makes again what torch would save; uninitialised unless `values` are needed."""
        size, stride, offset, memory = saved.size(), saved.stride(), saved.storage_offset(), _memory(saved)
        # weights, indices, a copy made by autocast, a view of real or imaginary parts
        if memory not in (_memory(self.x), _memory(self.box)) or saved.dtype != self.box.dtype:
            return partial(check_version, saved.detach(), version_of(saved))
        if not values:
            return partial(torch.empty_strided, size, stride, dtype=saved.dtype, device=saved.device)
        pieces, pad = self.pieces, self.pad if memory == _memory(self.x) else None

        def again() -> Tensor:
            box = pieces.put_together()
            return (box if pad is None else pad(box)).as_strided(size, stride, offset)

        return again


class _Replace:
    """The hook that gets what torch would save. Torch keeps the hook as long as what it returned."""

    def __init__(self, input: FetchedInput, values: bool) -> None:
        self.input: FetchedInput | None = input
        self.values = values

    def __call__(self, saved: Tensor) -> Again:
        assert self.input is not None
        return self.input.made_again(saved, self.values)


@contextmanager
def _replacing(input: FetchedInput, values: bool) -> Iterator[None]:
    replace = _Replace(input, values)
    try:
        with saved_tensors_hooks(replace, _again):
            yield
    finally:
        replace.input = None  # or the box would be kept alive


def _again(make: Again) -> Tensor:
    return make()


def may_hook() -> bool:
    """Whether the user neither has hooks for saved tensors, nor forbids them. Torch refuses to forbid hooks in use."""
    try:
        with disable_saved_tensors_hooks("hooks are in use"):
            pass
        with saved_tensors_hooks(torch.detach, torch.detach):
            return True
    except RuntimeError:
        return False


class SavedPieces:
    """A fetched box, kept in pieces until it is needed: the worker's block by reference, received pieces as copies.

    From then on the box is kept instead of the pieces, so that a block without other references is not in memory twice
    while torch works on the box. Mostly both are freed soon, since backward frees what it has used.
    """

    def __init__(self, own: Tensor, fetch: Fetch, box: Tensor) -> None:
        self.fetch, self.version = fetch, version_of(own)
        self.pieces: tuple[Tensor, list[Tensor]] | None = (own.detach(), fetch.received_pieces(box.detach()))
        self.box: Tensor | None = None

    def put_together(self) -> Tensor:
        if self.box is None:
            assert self.pieces is not None
            own, received = self.pieces
            self.box = self.fetch.put_together(check_version(own, self.version), received)
            self.pieces = None
        return self.box


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def check_version(x: Tensor, version: int, what: str = "the input of a distributed layer") -> Tensor:
    """`x`; raises as torch does if it has been changed in place since `version`; `what` it is, for the error."""
    if version_of(x) != version:
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been modified by an inplace operation: {what}, "
            f"shape {tuple(x.shape)}, is at version {version_of(x)}; expected version {version} "
            "instead."
        )
    return x
