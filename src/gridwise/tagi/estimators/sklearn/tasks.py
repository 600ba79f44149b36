"""The learning tasks of the search: numbers with constant noise, numbers with varying noise, and classes.

Data are standardised tensors in float64. A row of weight w counts as w rows: its noise variance is s / w. Several
networks may learn at once, as members of one (`stacked.py`). `held_out` (row, member) marks the rows that are held out from
a member: their observations count as missing for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...hrc_softmax import class_probabilities, class_tree
from ...nn import EvenExp, HRCSoftmax, Linear, MixtureReLU, ReLU, Sequential, Tanh, TrainStep
from ...nn.base_layer import BaseLayer
from ...nn.gaussian import Gaussian
from .noise import UNKNOWN, factor_of_noise, likeliest, mean_log_density, noise_of_numbers
from .stacked import StackedLinear

ACTIVATIONS: dict[str, Callable[[], BaseLayer]] = {"relu": ReLU, "mixture_relu": MixtureReLU, "tanh": Tanh}

LEAST_OF_TURNS = 0.05
"""The least noise on a turn (+1 or -1); with less, updates overshoot."""

TURN_NOISE_FACTOR = 2.0
"""Turns are learnt with the likeliest noise times this factor, since +1 and -1 are only targets."""

CHUNK = 4096
"""Rows that are passed through a network at a time."""

Network = Callable[..., Sequential]
"""A function that makes a new network, or one that holds `members` networks side by side."""


def network_of(widths: Sequence[int], activation: str, varying: bool = False, members: int | None = None) -> Sequential:
    """A new network in float64, or `members` networks in one, with layers of these widths from features to outputs."""
    layers: list[BaseLayer] = []
    for before, after in pairwise(widths):
        linear = Linear(before, after) if members is None else StackedLinear(members, before, after)
        layers += [linear, ACTIVATIONS[activation]()]
    layers[-1:] = [EvenExp()] if varying else []
    return Sequential(*layers).double()


@torch.no_grad()
def outputs_of(net: Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the outputs; leaves the network unchanged, so that several threads may predict at once."""
    parts = [net.forward(Gaussian(rows)) for rows in x.split(CHUNK)]
    return torch.cat([p.mu for p in parts]), torch.cat([p.variance() for p in parts])


class _Task:
    """Data to learn from, as prepared tensors. A subclass defines how they are learnt and judged:

    first_noise    the noise of the first epoch
    learn          one training step on some rows; `held_out` (row, member) marks those held out from a member
    judge          the likeliest noise of some rows, for outputs N(mu, var), and the mean log-likelihood with it
    """

    observe = "all"

    def __init__(self, network: Network, x: Tensor, weight: Tensor) -> None:
        self.network, self.x, self.weight = network, x, weight

    def outputs(self, net: Sequential, rows: Tensor) -> tuple[Tensor, Tensor]:
        return outputs_of(net, self.x[rows])

    def residuals(self, mu: Tensor, var: Tensor, rows: Tensor, noise: Any) -> Tensor | None:
        """Errors of the predictions relative to their standard deviations (row, column); None for classes."""
        return None


def _observed_by(y: Tensor, held_out: Tensor | None) -> Tensor:
    """Observations (row, column), or (row, member, column) with NaN where a row is held out from a member."""
    return y if held_out is None else torch.where(held_out[:, :, None], torch.nan, y[:, None])


class Numbers(_Task):
    """Numbers y (row, column), NaN where missing, with constant noise in each column: learnt, or `fixed`."""

    def __init__(self, network: Network, x: Tensor, y: Tensor, weight: Tensor, fixed: Tensor | None = None) -> None:
        super().__init__(network, x, weight)
        self.y, self.fixed = y, fixed

    def first_noise(self) -> Tensor:
        return torch.full((self.y.shape[1],), UNKNOWN, dtype=self.y.dtype) if self.fixed is None else self.fixed

    def learn(self, step: TrainStep, rows: Tensor, noise: Tensor, held_out: Tensor | None = None) -> None:
        y, var = _observed_by(self.y[rows], held_out), noise / self.weight[rows, None]
        step(self.x[rows], y, var if held_out is None else var[:, None].expand_as(y))

    def judge(self, mu: Tensor, var: Tensor, rows: Tensor) -> tuple[Tensor, float]:
        y, weight = self.y[rows], self.weight[rows]
        noise = noise_of_numbers(mu, var, y, weight) if self.fixed is None else self.fixed
        return noise, mean_log_density(mu, var, y, noise, weight)

    def residuals(self, mu: Tensor, var: Tensor, rows: Tensor, noise: Any) -> Tensor | None:
        return (self.y[rows] - mu) / (var + noise).sqrt()


class VaryingNumbers(_Task):
    """Numbers whose noise the network predicts too, by approximate Gaussian variance inference (AGVI).

    A network is too sure of the noise of what it has learnt. Its variance is multiplied by the factor that makes the held-out
    rows likeliest, one for each column; the factor takes the place of the noise elsewhere.
    """

    observe = "heteros"

    def __init__(self, network: Network, x: Tensor, y: Tensor, weight: Tensor) -> None:
        super().__init__(network, x, weight)
        self.y = y

    def first_noise(self) -> Tensor:
        return torch.ones(self.y.shape[1], dtype=self.y.dtype)

    def learn(self, step: TrainStep, rows: Tensor, noise: Tensor, held_out: Tensor | None = None) -> None:
        step(self.x[rows], _observed_by(self.y[rows], held_out))

    def judge(self, mu: Tensor, var: Tensor, rows: Tensor) -> tuple[Tensor, float]:
        y, weight = self.y[rows], self.weight[rows]
        factor = factor_of_noise(mu[:, 0::2], var[:, 0::2], y, mu[:, 1::2], weight)
        return factor, mean_log_density(mu[:, 0::2], var[:, 0::2], y, factor * mu[:, 1::2], weight)

    def residuals(self, mu: Tensor, var: Tensor, rows: Tensor, noise: Any) -> Tensor | None:
        return (self.y[rows] - mu[:, 0::2]) / (var[:, 0::2] + noise * mu[:, 1::2]).sqrt()


class Classes(_Task):
    """Labels 0, 1, ... as turns in a tree, with the same noise on every turn: learnt, or `fixed`."""

    observe = "indices"

    def __init__(
        self, network: Network, x: Tensor, label: Tensor, weight: Tensor, classes: int, fixed: float | None = None
    ) -> None:
        super().__init__(network, x, weight)
        self.label, self.fixed, self.tree = label, fixed, class_tree(classes)
        self._turn = torch.as_tensor(self.tree.obs).double().reshape(classes, -1)
        self._node = torch.as_tensor(self.tree.idx).long().reshape(classes, -1)

    def first_noise(self) -> float:
        return 0.5 if self.fixed is None else self.fixed

    def learn(self, step: TrainStep, rows: Tensor, noise: float, held_out: Tensor | None = None) -> None:
        label = self.label[rows]
        turns, nodes = _observed_by(self._turn[label], held_out), self._node[label]
        var = (TURN_NOISE_FACTOR * noise) ** 2 / self.weight[rows].reshape(-1, *(1,) * (turns.ndim - 1))
        if held_out is not None:
            nodes = nodes[:, None] + self.tree.len * torch.arange(held_out.shape[1])[:, None]
        step(self.x[rows], turns.flatten(1), var.expand_as(turns).flatten(1), nodes.flatten(1))

    def judge(self, mu: Tensor, var: Tensor, rows: Tensor) -> tuple[float, float]:
        label, weight = self.label[rows], self.weight[rows]

        def score(noise: float) -> float:
            p = probabilities(mu, var, self.tree, noise).gather(1, label[:, None])[:, 0]
            return float((weight * torch.log(p.clamp_min(1e-12))).sum() / weight.sum())

        noise = likeliest(score, LEAST_OF_TURNS) if self.fixed is None else self.fixed
        return noise, score(noise)


LearningTask = Numbers | VaryingNumbers | Classes


def probabilities(mu: Tensor, var: Tensor, tree: HRCSoftmax, noise: float) -> Tensor:
    """The probabilities of all classes, (row, class), which add up to one."""
    p = class_probabilities(mu, var, tree, noise)
    return p / p.sum(1, keepdim=True).clamp_min(math.ulp(0.0))
