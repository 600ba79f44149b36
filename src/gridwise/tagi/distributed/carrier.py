"""Moments and innovations moved between workers: one movement for a mean and its variance.

    forward   (mu, var)              A x    each worker gets the rows it needs from their owners, padded
    backward  (delta_mu, delta_var)  A' d   innovations of the same rows go back, and the owners add them up

The innovation of a unit that was copied is the sum of its copies' innovations, for means and variances alike, so
closed-form inference needs nothing of the movement but its adjoint. The routes are those of every other layer
(`gridwise.nn`), without autograd and for two tensors at a time: mean and variance are sent in one message per peer,
without being copied together first.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Interval, Layout, Needs, route
from ...nn.engine.carrier import BoxView
from ...nn.windows.fetch import Fetch
from ..nn.base_layer import BaseLayer
from ..nn.gaussian import Gaussian, Innovation
from ..nn.windowed import Margins


class Carrier:
    """Fetches the `needs` of each worker from a tensor in blocks `source`, with `margins` of `fill` around them.

    `drops` is how many excess rows and columns a transposed convolution then makes; negative where it makes too few.
    """

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
        self.transport, self.needs = transport, needs
        self.drops: Margins | None = None
        plan = route(source, needs, transport.rank)
        self._forth = Fetch(transport, team, name, plan, _nothing, tuple(margins), fill)

    def fetch(self, x: Gaussian) -> Gaussian:
        """Moments of the rows that this worker needs, without Jacobians, which stay with the owners."""
        forth, sources = self._forth, [x.mu] if x.var is None else [x.mu, x.var]
        if forth.is_identity:
            return Gaussian(x.mu, x.var)
        results = [_nothing(t) if forth.plan.needed is None else forth.room_for(t) for t in sources]
        forth.traffic.carry_together(sources, results, forth.kept, add=False)
        return Gaussian(*results)

    def give_back(self, delta: Innovation, fresh: bool = True) -> Innovation:
        """The innovations of this worker's own block, summed over all workers that fetched parts of it.

        `fresh` innovations are referenced nowhere else: arriving ones are added to them in place, without a copy.
        """
        forth = self._forth
        if forth.is_identity:
            return delta
        sources = list(delta)
        if fresh and forth.keeps_all:
            targets = [forth.kept[0][1](t) for t in sources]
            kept: list[tuple[BoxView, BoxView]] = []
        else:
            owned = forth.plan.owned
            targets = [_nothing(t) if owned is None else t.new_zeros(owned.shape) for t in sources]
            kept = [(target, source) for source, target in forth.kept]
        forth.adjoint.traffic.carry_together(sources, targets, kept, add=True)
        return Innovation(*targets)


class Regrid(BaseLayer):
    """A repartition between two layers of a network: whole samples on every worker, from blocks of images."""

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
        return self.carrier.give_back(delta.reshape(*needed), fresh=False).through(jcb)


def _nothing(x: Tensor) -> Tensor:
    return x.new_empty(0)
