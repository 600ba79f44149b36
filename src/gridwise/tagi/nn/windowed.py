"""What convolutions and pooling share: their outputs see windows of the input, and rows beyond it.

    alone        rows beyond the image are padding; convolutions leave the symmetric kind to torch
    on a grid    rows beyond the block belong to other workers: `halo` brings all that the block's outputs need, padding
                 included, and takes innovations back to the rows' owners, where they are added

Jacobians never travel: innovations are multiplied by them after they have come back, by the owner of the row.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from .base_layer import BaseLayer
from .gaussian import Gaussian, Innovation


class Halo(Protocol):
    """How a worker's part of a windowed layer reaches the rows of others
    (`gridwise.tagi.distributed.grid_sequential`)."""

    def fetch(self, x: Gaussian) -> Gaussian:
        """Means and variances of all rows that this worker's outputs see, padded; without Jacobians."""

    def give_back(self, delta: Innovation) -> Innovation:
        """The adjoint: innovations of fetched rows, sent to their owners and added there."""

    def crop(self, y: Tensor) -> Tensor:
        """This worker's outputs, out of those that a transposed convolution makes of the fetched rows."""

    def uncrop(self, delta: Tensor) -> Tensor:
        """The adjoint of `crop`."""


class WindowedBaseLayer(BaseLayer):
    """Base of layers whose outputs see windows of the input."""

    halo: Halo | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"halo": None}

    def _fetched_rows(self, x: Gaussian) -> Gaussian:
        """The rows that the outputs see, without their Jacobians."""
        if self.halo is not None:
            return self.halo.fetch(x)
        return Gaussian(self._pad(x.mu), None if x.var is None else self._pad(x.var))

    def _returned_rows(self, delta: Innovation, shape: tuple[int, ...]) -> Innovation:
        """Innovations of the input, of local shape `shape`, from those of the rows seen."""
        if self.halo is not None:
            return self.halo.give_back(delta)
        return Innovation(self._unpad(delta.mu, shape), self._unpad(delta.var, shape))

    def _pad(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _unpad(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        raise NotImplementedError
