"""Moments and innovations on their way between workers: one movement for a mean and its variance.

    forward   (mu, var)              A x    each worker gets the rows it needs, from their owners, with padding around them
    backward  (delta_mu, delta_var)  A' d   the same rows go back, and what arrives at one place is added

The innovations of a sum of copies are the sums of the innovations, for means and for variances alike: the adjoint of
the movement is all that closed-form inference needs of it. The routes are those of every other layer (`gridwise.nn`),
without autograd, for two tensors at a time: mean and variance leave in one message per peer, each from where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Interval, Layout, Needs, route
from ...nn.engine.carrier import Place
from ...nn.windows.fetch import Fetch
from ..nn.base_layer import BaseLayer
from ..nn.gaussian import Gaussian, Innovation
from ..nn.windowed import Margins


class Carrier:
    """Brings each worker its `needs` of a tensor in blocks `source`, with `margins` of `fill` around them.

    `drops` are the rows and columns that a transposed convolution then makes too many; negative ones are missing.
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
        """What this worker needs, without Jacobians: they stay with the owners."""
        forth, sources = self._forth, [x.mu] if x.var is None else [x.mu, x.var]
        if forth.is_identity:
            return Gaussian(x.mu, x.var)
        results = [_nothing(t) if forth.plan.needed is None else forth.room_for(t) for t in sources]
        forth.traffic.carry_together(sources, results, forth.kept, add=False)
        return Gaussian(*results)

    def give_back(self, delta: Innovation, fresh: bool = True) -> Innovation:
        """The innovations of what this worker owns, from those of everything that was fetched of it.

        `fresh` innovations have no other reference: what arrives is added to them, and they are not copied.
        """
        forth = self._forth
        if forth.is_identity:
            return delta
        sources = list(delta)
        if fresh and forth.keeps_all:
            targets = [forth.kept[0][1](t) for t in sources]
            kept: list[tuple[Place, Place]] = []
        else:
            owned = forth.plan.owned
            targets = [_nothing(t) if owned is None else t.new_zeros(owned.shape) for t in sources]
            kept = [(target, source) for source, target in forth.kept]
        forth.adjoint.traffic.carry_together(sources, targets, kept, add=True)
        return Innovation(*targets)


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
        return self.carrier.give_back(delta.reshape(*needed), fresh=False).through(jcb)


def _nothing(x: Tensor) -> Tensor:
    return x.new_empty(0)
