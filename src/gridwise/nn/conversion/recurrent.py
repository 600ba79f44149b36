"""Recurrent layers over blocks of the batch: every worker runs torch's on its own samples, with all of the weights.

    x (batch, time, feature), h (layer, batch, hidden)  ->  y (batch, time, hidden), h

Time and features are whole. The initial state, where it is given, is cut like the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .plainly import called
from .products import combined, extents_of
from .state import OnGrid, Parts, State
from .walk import Node, Unfit, Walk

RUN: dict[str, Any] = {
    "LSTM": torch._VF.lstm,
    "GRU": torch._VF.gru,
    "RNN_TANH": torch._VF.rnn_tanh,
    "RNN_RELU": torch._VF.rnn_relu,
}


class Kind(NamedTuple):
    """What a recurrent layer is, apart from its weights."""

    mode: str
    bias: bool
    layers: int
    both_ways: bool
    batch_first: bool
    hidden: int
    out: int

    @property
    def states(self) -> int:
        return self.layers * (2 if self.both_ways else 1)


def recurrence(x: Tensor, initial: tuple[Tensor, ...], weights: tuple[Tensor, ...], kind: tuple) -> tuple[Tensor, ...]:
    """The output and the last states, of a block of the batch."""
    of = Kind(*kind)
    samples = x.shape[0 if of.batch_first else 1]
    widths = (of.out, of.hidden) if of.mode == "LSTM" else (of.out,)
    if not initial:
        initial = tuple(x.new_zeros(of.states, samples, width) for width in widths)
    if not samples:  # torch wants one at least; all workers take part in the sums of the gradients, of any order
        nothing = torch.stack([part.flatten()[:0].sum() for part in (x, *weights, *initial)]).sum().exp()
        features = of.out * (2 if of.both_ways else 1)
        y = x.new_zeros(*x.shape[:-1], features) + nothing
        return y, *(x.new_zeros(of.states, 0, width) + nothing for width in widths)
    hx = initial if of.mode == "LSTM" else initial[0]
    rest = (of.bias, of.layers, 0.0, False, of.both_ways, of.batch_first)
    return tuple(RUN[of.mode](x, hx, weights, *rest))


def forward(self: Any, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
    """`torch.nn.LSTM`, `GRU` and `RNN` of a batch."""
    kind = Kind(
        self.mode, self.bias, self.num_layers, self.bidirectional, self.batch_first, self.hidden_size,
        self.proj_size or self.hidden_size,
    )  # fmt: skip
    initial = () if hx is None else (hx[0], hx[1]) if self.mode == "LSTM" else (hx,)
    weights = tuple(getattr(self, name) for name in self._flat_weights_names)
    made = called(recurrence, input, initial, weights, tuple(kind))
    return made[0], (made[1], made[2]) if self.mode == "LSTM" else made[1]


def rule(walk: Walk, node: Node, name: str) -> State:
    x, initial, _, kind = node.args
    of, extents = Kind(*kind), extents_of(walk, x)
    if len(extents) != 3 or any(len(extents_of(walk, state)) != 3 for state in initial):
        raise Unfit(f"{of.mode} of a tensor without a batch")
    if not all(isinstance(walk.states[arg], OnGrid) for arg in (x, *initial)):
        raise Unfit(f"{of.mode} whose input or initial state is a parameter")
    labels = ["b", "t", "f"] if of.batch_first else ["t", "b", "f"]
    operands = [(x, labels), *((state, ["l", "b", "h"]) for state in initial)]
    batch = combined(walk, node, of.mode, operands, ["b"], broadcasts=False)
    assert isinstance(batch, OnGrid)
    time, features = extents[labels.index("t")], of.out * (2 if of.both_ways else 1)
    y = batch.reshaped(1, 1, [time, features])
    if not of.batch_first:
        y = batch.reshaped(0, 0, [time]).reshaped(2, 2, [features])
    widths = (of.out, of.hidden) if of.mode == "LSTM" else (of.out,)
    last = batch.reshaped(0, 0, [of.states])
    return Parts(tuple, (y, *(last.reshaped(2, 2, [width]) for width in widths)))


RULES: dict[str, Any] = {"recurrence": rule}
