"""Moments and innovations on their way between workers: one movement for a mean and its variance.

    forward   (mu, var)              A x    each worker gets the rows it needs, from their owners, with padding around them
    backward  (delta_mu, delta_var)  A' d   the same rows go back, and what arrives at one place is added

The innovations of a sum of copies are the sums of the innovations, for means and for variances alike: the adjoint of
the movement is all that closed-form inference needs of it. The routes are those of every other layer (`gridwise.nn`),
without autograd, and with one dim more in front: mean and variance are stacked there and leave in one message per peer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...comm.transport import Team, Transport
from ...grid import Grid, Interval, Layout, Needs, route
from ...nn.fetch import Fetch
from ...nn.windowed import nothing
from ..nn.base_layer import BaseLayer
from ..nn.gaussian import Gaussian, Innovation


class Carrier:
    """Brings each worker its `needs` of a tensor in blocks `source`, with `margins` of `fill` around them."""

    def __init__(
        self,
        transport: Transport,
        team: Team,
        name: str,
        source: Layout,
        needs: Needs,
        margins: Sequence[Interval] = (),
        fill: float = 0.0,
    ) -> None:
        self.transport, self.team, self.name = transport, team, name
        self.source, self.needs, self.margins, self.fill = source, needs, tuple(margins), fill
        self._operators: dict[int, Fetch] = {}

    def _operator(self, stacked: int) -> Fetch:
        """The movement of so many tensors of one shape at once."""
        if stacked not in self._operators:
            grids = [Grid(g.ranks, (1, *g.shape)) for g in (self.source.grid, self.needs.grid)]
            source = Layout(grids[0], ((0, stacked), *self.source.cuts))
            needs = Needs(grids[1], (((0, stacked),), *self.needs.intervals), (False, *self.needs.wrap))
            plan = route(source, needs, self.transport.rank)
            margins = ((0, 0), *self.margins) if self.margins else ()
            self._operators[stacked] = Fetch(self.transport, self.team, self.name, plan, nothing, margins, self.fill)
        return self._operators[stacked]

    def fetch(self, x: Gaussian) -> Gaussian:
        """What this worker needs, without Jacobians: they stay with the owners."""
        if x.var is None:
            return Gaussian(self._operator(1)(x.mu.unsqueeze(0))[0])
        operator = self._operator(2)
        if operator.aliases:
            return Gaussian(x.mu, x.var)
        mu, var = operator(torch.stack((x.mu, x.var)))
        return Gaussian(mu, var)

    def give_back(self, delta: Innovation) -> Innovation:
        """The innovations of what this worker owns, from those of everything that was fetched of it."""
        operator = self._operator(2)
        if operator.aliases:
            return delta
        mu, var = operator.adjoint(torch.stack((delta.mu, delta.var)))
        return Innovation(mu, var)


class GridHalo(Carrier):
    """The carrier of a windowed layer; for a transposed convolution it also cuts out the outputs.

    `drops` are the rows and columns that the kernel makes too many, before and after; negative ones are added as zeros.
    """

    drops: tuple[Interval, Interval] | None = None

    def crop(self, y: Tensor) -> Tensor:
        return y if self.drops is None else F.pad(y, [-n for drop in reversed(self.drops) for n in drop])

    def uncrop(self, delta: Tensor) -> Tensor:
        return delta if self.drops is None else F.pad(delta, [n for drop in reversed(self.drops) for n in drop])


class Regrid(BaseLayer):
    """Whole samples on every worker, from blocks of images: a repartition between two layers of a network."""

    def __init__(self, carrier: Carrier) -> None:
        super().__init__()
        self.carrier = carrier

    def forward(self, x: Gaussian) -> Gaussian:
        self._keep(x.jcb, x.mu.shape)
        return self.carrier.fetch(x)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        jcb, _ = self._recall()
        if not need_input:
            return None
        needed = self.carrier.needs.box(self.carrier.transport.rank).shape
        return self.carrier.give_back(delta.reshape(*needed)).through(jcb)
