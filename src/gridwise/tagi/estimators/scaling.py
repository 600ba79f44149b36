"""Mean and standard deviation of columns, for standardisation: in float64, over all workers of a team.

blocks of rows      n, mean, m2 = sum of (x - mean)**2       merged block by block, to avoid cancellation
over the workers    mean = sum(n mean) / sum(n)              one sum
                    m2   = sum(m2 + n (mean_here - mean)**2) another
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..distributed.replicas import Replicas

CONSTANT = 1e-12
"""A column whose standard deviation is below this fraction of its mean is constant, up to rounding."""

CHUNK = 4096
"""Rows that are converted to float64 at a time."""


class ColumnMoments:
    """Count, mean and sum of squared deviations of each column of the rows added; NaN is left out."""

    def __init__(self) -> None:
        self.count = self.mean = self.m2 = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(self, block: Tensor) -> None:
        """Add rows (row, ...)."""
        for rows in block.split(CHUNK):
            self._add(rows.double().cpu())

    def _add(self, rows: Tensor) -> None:
        known = ~torch.isnan(rows)
        count = known.sum(0).double()
        mean = torch.nan_to_num(rows).sum(0) / count.clamp_min(1)
        m2 = torch.where(known, rows - mean, 0.0).square().sum(0)
        total = self.count + count
        apart = mean - self.mean
        self.m2 = self.m2 + m2 + apart.square() * self.count * count / total.clamp_min(1)
        self.mean = self.mean + apart * count / total.clamp_min(1)
        self.count = total

    def over(self, replicas: Replicas, shape: tuple[int, ...]) -> ColumnMoments:
        """The moments over all workers' rows, each of shape `shape`."""
        out = ColumnMoments()
        count, mean, m2 = (t.expand(shape) for t in (self.count, self.mean, self.m2))
        out.count, total = _sum(replicas, torch.stack((count, count * mean)))
        out.mean = total / out.count.clamp_min(1)
        out.m2 = _sum(replicas, m2 + count * (mean - out.mean).square())
        return out


def _sum(replicas: Replicas, x: Tensor) -> Tensor:
    return replicas.transport.all_sum(x.contiguous(), replicas.team, "the mean and deviation of the training data")


class Scale:
    """Mean and standard deviation of columns; constant columns have standard deviation 1."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean, torch.where(std > CONSTANT * mean.abs(), std, torch.ones_like(std))

    @classmethod
    def of(cls, moments: ColumnMoments, team: Replicas | None = None, shape: tuple[int, ...] = ()) -> Scale:
        """The scale of this worker's rows or, with `team`, of all workers' rows, each of shape `shape`."""
        if team is not None:
            moments = moments.over(team, shape)
        return cls(moments.mean, (moments.m2 / moments.count.clamp_min(1)).sqrt())

    @classmethod
    def none(cls) -> Scale:
        """The scale that changes nothing."""
        return cls(*(torch.tensor(v, dtype=torch.float64, device="cpu") for v in (0.0, 1.0)))

    def standardise(self, x: Tensor) -> Tensor:
        """`x` standardised, in float64, which still separates large values that differ little."""
        return (x.double() - self.mean.to(x.device)) / self.std.to(x.device)

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Scale:
        """The scale that `state_dict` was called on."""
        return cls(*(torch.as_tensor(state[name]).detach().to("cpu", torch.float64) for name in ("mean", "std")))
