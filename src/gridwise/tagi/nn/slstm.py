"""An LSTM layer whose states can be smoothed backwards in time (Rauch-Tung-Striebel).

Each step t records its prior (before the observation), its posterior (after), and its covariances with step t-1:

    Cov(c_(t-1), c_t) = v_c(t-1) f                    diagonal
    Cov(h_(t-1), h_t)[p, j] = v_h(t-1)[p] (r (g_f W_f + g_i W_i + g_g W_g) + g_o W_o)[j, input + p]

`smoother()` starts from the last posterior and goes back in time, for cells and outputs alike:

    G = Cov(t, t+1) / prior variance(t+1)
    smoothed(t) = posterior(t) + G (smoothed(t+1) - prior(t+1)),     G**2 for the variances

Covariances between the units of one step are neglected, as everywhere in TAGI.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import GridwiseError
from .gaussian import Gaussian, Innovation
from .lstm import LSTM, LSTMStates, _GateWeights, _Step

_LEAST = 1e-5  # replaces a variance that is not positive


class _TimeStepRecord(NamedTuple):
    """The record of one time step."""

    prior: LSTMStates
    posterior: LSTMStates
    cov_cc: Tensor | None  # (batch, unit)
    cov_hh: Tensor | None  # (batch, unit before, unit)


class SLSTM(LSTM):
    """An LSTM layer that records its steps, for `Sequential.smoother()`.

    Feed one time step per call (`seq_len` 1), with forward, update, backward and step each time, and call `smoother()`
    at the end of the series. For a step without observation, pass NaN as the observation.

    Parameters
    ----------
    input_size, ..., init_method : as in `LSTM`

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.SLSTM(1, 4), nn.SLinear(4, 1))
    >>> mu, var = net(np.ones((2, 1), dtype='float32'))
    >>> mu.shape
    (2,)
    """

    compilable = False  # it records every step

    def __init__(
        self,
        input_size: int,
        output_size: int,
        seq_len: int = 1,
        bias: bool = True,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "He",
    ) -> None:
        super().__init__(input_size, output_size, seq_len, bias, gain_weight, gain_bias, init_method, stateful=True)
        self.history: list[_TimeStepRecord] = []
        self.smoothed: list[LSTMStates] = []

    def _observe_step(self, before: LSTMStates | None, after: LSTMStates, step: _Step, weights: _GateWeights) -> None:
        if not self.training:
            return
        cov_cc = cov_hh = None
        if before is not None:
            n = self.output_size
            slopes = torch.cat((step.slopes[:, :3] * step.r[:, None], step.slopes[:, 3:]), 1)
            through = torch.einsum("bqj,pqj->bpj", slopes, weights.mu_h.unflatten(1, (4, n)))
            cov_hh = before.var_h[:, :, None] * through
            cov_cc = before.var_c * step.f
        self.history.append(_TimeStepRecord(after, after, cov_cc, cov_hh))

    def _posterior(self, states: LSTMStates, step: _Step, h: Innovation) -> None:
        super()._posterior(states, step, h)
        if self.states is not None:  # with compat='cutagi', only one sample of one step has states
            self.history[-1] = self.history[-1]._replace(posterior=self.states)

    def reset_states(self) -> None:
        super().reset_states()
        self.history = []

    def get_states(self, time_step: int = -1) -> LSTMStates:
        """The current states, or the smoothed ones of `time_step`."""
        if time_step < 0:
            return super().get_states()
        if time_step >= len(self.smoothed):
            raise GridwiseError(f"SLSTM: `time_step` (={time_step}) of {len(self.smoothed)} smoothed steps.")
        return self.smoothed[time_step]

    def smoother(self) -> list[Gaussian]:
        """The smoothed outputs by time step; resets the layer."""
        if not self.history:
            return []
        now = self.history[-1].posterior
        smoothed = [now]
        for past, later in zip(self.history[-2::-1], self.history[:0:-1], strict=True):
            now = _smooth(past.posterior, later, now)
            smoothed.append(now)
        self.smoothed = smoothed[::-1]
        self.reset_states()
        return [Gaussian(s.mu_h, s.var_h) for s in self.smoothed]


def _smooth(posterior: LSTMStates, later: _TimeStepRecord, smoothed: LSTMStates) -> LSTMStates:
    """The smoothed states of a step, from its posterior and the smoothed states of the next step."""
    if later.cov_cc is None or later.cov_hh is None:  # a new sequence started at the later step
        return posterior
    prior = later.prior
    gain_c = later.cov_cc / _positive(prior.var_c)
    gain_h = later.cov_hh / _positive(prior.var_h)[:, None, :]
    return LSTMStates(
        posterior.mu_h + torch.einsum("bpj,bj->bp", gain_h, smoothed.mu_h - prior.mu_h),
        _positive(posterior.var_h + torch.einsum("bpj,bj->bp", gain_h**2, smoothed.var_h - prior.var_h)),
        posterior.mu_c + gain_c * (smoothed.mu_c - prior.mu_c),
        _positive(posterior.var_c + gain_c**2 * (smoothed.var_c - prior.var_c)),
    )


def _positive(var: Tensor) -> Tensor:
    return torch.where(var > 0, var, _LEAST)
