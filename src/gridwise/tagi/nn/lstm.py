"""Long short-term memory with Gaussian weights and true recurrence over the sequence.

The gates f, i, o (sigmoid) and the candidate g (tanh) are linearised functions of linear maps of [x_t, h_(t-1)]; c is
the cell, c_p the previous cell, h the output. C_qr = J_q J_r sum_j W_qj W_rj v_j is the covariance of two gates through
their common input:

    mu_c  = f c_p + i g + C_ig                              var_c = Var(f c_p) + Var(i g)
    h     = o tanh(c)     mu_h = o a + C_oa                 a = tanh(mu_c), J_a = 1 - a**2
    C_oa  = J_a (C_fo c_p + C_io g + C_go i)
    Var(x y) = v_x v_y + v_x y**2 + v_y x**2 + C**2 + 2 C x y

Backward goes back through time. At step t the output h_t has an innovation (delta, Delta), from the layer above and
from step t+1; the cell c_t has another, (e, E), from c_(t+1). With r = J_a o and the slopes

    g_f = J_f c_p,  g_i = J_i g,  g_g = J_g i  (of the cell),   g_o = J_o a  (of the output)

    cell       e_c = r delta + e            E_c = r**2 Delta + E
    gates      e_c g_q, and delta g_o       E_c g_q**2, and Delta g_o**2
    c_(t-1)    f e_c                        f**2 E_c
    input j    sum_q (e_c g_q) W_qj + ...   Delta (r sum_q g_q W_qj + g_o W_oj)**2 + E (sum_q g_q W_qj)**2

The last squares couple the gates. Expanded, they are one matrix product with the ten products W_q W_r of the gates'
weights, of which forward needs eight; the contribution of x_t is computed for all steps at once, outside the recursion.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import ArgumentError
from ..inference.products import product
from .base_layer import Fans, ParametricLayer, Shape
from .gaussian import Gaussian, Innovation

_F, _I, _G, _O = range(4)  # the order of the gates in the weights
_FIRST = (_F, _I, _G, _O, _I, _F, _I, _G, _F, _F)  # the gates q of the ten products W_q W_r, and below the gates r:
_SECOND = (_F, _I, _G, _O, _G, _O, _O, _O, _I, _G)  # four squares, ig, fo, io, go (forward ends here), fi, fg


class LSTMStates(NamedTuple):
    """Moments (batch, unit) of the output h and of the cell c."""

    mu_h: Tensor
    var_h: Tensor
    mu_c: Tensor
    var_c: Tensor


class _Step(NamedTuple):
    """What backward needs from one time step."""

    h_prev: Tensor | None  # means of h_(t-1); None for zeros
    slopes: Tensor  # (batch, 4, unit): g_f, g_i, g_g, g_o
    r: Tensor
    f: Tensor


class LSTM(ParametricLayer):
    """A long short-term memory layer over sequences (batch, seq_len, input_size) -> (batch, seq_len, output_size).

    Parameters
    ----------
    input_size, output_size
        Units of one time step.
    seq_len
        Time steps of one sample, for flat inputs; tensors of three dims may have any length.
    stateful
        Whether a call continues where the last one ended (row b of the batch from row b of the last batch), from the
        posterior states if backward was called in between. None: only if `seq_len` is 1. A batch of another size starts
        from zero, and so does the first call after `reset_states`.

    Notes
    -----
    `compat='cutagi'` reproduces the original: the steps of a sequence are independent (h and c are zero at each),
    states are carried over only for one sample of one step, the covariance of o and c omits the recurrent inputs, and
    the innovations of the input lack its Jacobian.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.LSTM(1, 4, 6), nn.Linear(24, 1))
    >>> mu, var = net(np.ones((2, 6), dtype='float32'))
    >>> mu.shape
    (2,)
    """

    first: Tensor
    second: Tensor

    def __init__(
        self,
        input_size: int,
        output_size: int,
        seq_len: int,
        bias: bool = True,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "He",
        *,
        stateful: bool | None = None,
    ) -> None:
        if seq_len < 1:
            raise ArgumentError(f"{type(self).__name__}: `seq_len` (={seq_len}) is less than one.")
        super().__init__(input_size, output_size, bias)
        self.seq_len = seq_len
        self.stateful = seq_len == 1 if stateful is None else stateful
        self.gain_weight, self.gain_bias, self.init_method = gain_weight, gain_bias, init_method
        self.states: LSTMStates | None = None
        self.register_buffer("first", torch.tensor(_FIRST), persistent=False)  # on the device: a CUDA graph needs that
        self.register_buffer("second", torch.tensor(_SECOND), persistent=False)
        self.init_weight_bias()

    def _shapes(self) -> tuple[Shape, Shape, Fans]:
        fan_in, n = self.input_size + self.output_size, self.output_size
        return (4, n, fan_in), (4, n), (fan_in, n)

    def as_input(self, flat: Tensor) -> Tensor:
        if flat.ndim == 3 and flat.shape[-1] == self.input_size:
            return flat
        return self._samples(flat, self.seq_len * self.input_size).reshape(-1, self.seq_len, self.input_size)

    # ---- forward ----------------------------------------------------------------------------------------------------
    def forward(self, x: Gaussian) -> Gaussian:
        shape = x.mu.shape
        x = x.map(self.as_input)
        batch, length = x.mu.shape[:2]
        independent = self.compat == "cutagi" and batch * length > 1
        if independent:
            x = x.reshape(batch * length, 1, self.input_size)
        states = None if independent else self._start(x.mu)
        weights = _GateWeights(self)
        moments = weights.of_input(x, self)
        steps: list[_Step] = []
        outputs: list[Gaussian] = []
        for t in range(x.mu.shape[1]):
            z = moments[:, :, t] if states is None else weights.plus_recurrent(moments[:, :, t], states)
            before, (states, step) = states, _cell(z, states, self.output_size)
            self._observe_step(before, states, step, weights)
            steps.append(step)
            outputs.append(Gaussian(states.mu_h, states.var_h))
        assert states is not None
        self._carry(None if independent else states)
        self._keep(x, weights, steps, states, shape, (batch, length))
        out = Gaussian(torch.stack([h.mu for h in outputs], 1), torch.stack([h.variance() for h in outputs], 1))
        return out.reshape(batch, length, self.output_size)

    def _start(self, like: Tensor) -> LSTMStates | None:
        if not self.stateful or self.states is None or self.states.mu_h.shape[0] != like.shape[0]:
            return None
        return LSTMStates(*(t.to(like) for t in self.states))

    def _carry(self, states: LSTMStates | None) -> None:
        if self.stateful:
            self.states = states

    def _observe_step(self, before: LSTMStates | None, after: LSTMStates, step: _Step, weights: _GateWeights) -> None:
        """Called after each forward step; a hook for subclasses that smooth."""

    # ---- backward ---------------------------------------------------------------------------------------------------
    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        x, weights, steps, last, shape, (batch, _) = self._recall()
        d = delta.reshape(x.mu.shape[0], x.mu.shape[1], self.output_size)
        gates, gates_var, mixed = self._through_time(d, weights, steps)
        self._posterior(last, steps[-1], Innovation(d.mu[:, -1], d.var[:, -1]))
        self._sum_parameters(batch, x.mu, steps, gates, gates_var)
        if not need_input:
            return None
        rows = x.mu.shape[0] * x.mu.shape[1]
        back = Innovation(
            product(gates.reshape(rows, 4 * self.output_size), weights.mu_x.t()),
            product(mixed.reshape(rows, 10 * self.output_size), weights.products_x.t()),
        ).reshape(*x.mu.shape)
        return back.through(None if self.compat == "cutagi" else x.jcb).reshape(*shape)

    def _through_time(self, d: Innovation, weights: _GateWeights, steps: list[_Step]) -> tuple[Tensor, Tensor, Tensor]:
        """Innovations (batch, time, ...) of the gates' means and variances, and the coefficients of all W_q W_r."""
        gates: list[Tensor] = []
        gates_var: list[Tensor] = []
        mixed: list[Tensor] = []
        later: Innovation | None = None
        cell: Innovation | None = None
        for t in range(len(steps) - 1, -1, -1):
            step = steps[t]
            h = Innovation(d.mu[:, t], d.var[:, t]).plus(later)
            c = h.through(step.r).plus(cell)
            e, e_var, k = _gate_innovations(h, c, step)
            gates.append(e)
            gates_var.append(e_var)
            mixed.append(k)
            if step.h_prev is not None and t > 0:
                later = Innovation(
                    product(e.flatten(1), weights.mu_h.t()), product(k.flatten(1), weights.products_h.t())
                )
                cell = c.through(step.f)
        return tuple(torch.stack(values[::-1], 1) for values in (gates, gates_var, mixed))  # type: ignore[return-value]

    def _sum_parameters(self, batch: int, m: Tensor, steps: list[_Step], gates: Tensor, gates_var: Tensor) -> None:
        zeros = m.new_zeros(m.shape[0], self.output_size)
        h = torch.stack([zeros if step.h_prev is None else step.h_prev for step in steps], 1)
        joined = torch.cat((m, h), -1).flatten(0, 1)  # (batch time, input + output)
        e, e_var = gates.flatten(0, 1).flatten(1), gates_var.flatten(0, 1).flatten(1)
        w = (product(e.t(), joined), product(e_var.t(), joined * joined))
        self._sums_ready(batch, w, (e.sum(0), e_var.sum(0)))

    def _posterior(self, states: LSTMStates, step: _Step, h: Innovation) -> None:
        """Set the states that the next call continues from to the posterior of the last step."""
        if not self.stateful or self.states is None:
            return
        tau = states.var_c * step.r
        self.states = LSTMStates(
            states.mu_h + h.mu * states.var_h,
            (states.var_h * (1.0 + h.var * states.var_h)).clamp_min(0.0),
            states.mu_c + tau * h.mu,
            (states.var_c + tau * tau * h.var).clamp_min(0.0),
        )

    def carried(self) -> tuple[Tensor, ...]:
        return () if self.states is None else tuple(self.states)

    def carry(self, states: tuple[Tensor, ...]) -> None:
        self.states = LSTMStates(*states) if states else None

    # ---- states -----------------------------------------------------------------------------------------------------
    def reset_states(self) -> None:
        """Let the next sequence start from zero."""
        self.states = None

    def get_states(self, time_step: int = -1) -> LSTMStates:
        """The current states; zeros before the first step."""
        if self.states is not None:
            return self.states
        zeros = self.mu_w.new_zeros(1, self.output_size)
        return LSTMStates(zeros, zeros, zeros, zeros)

    def get_layer_info(self) -> str:
        return f"{self.get_layer_name()}({self.input_size},{self.output_size})"


class _GateWeights:
    """The weights arranged for the products of one call, (input, gate unit), those of the recurrence separately.

    Forward computes four products at once, stacked: of m with W, of m**2 with S, and of v with S + W**2 and with the
    four W_q W_r of the covariances. The moments of the gates' inputs are in that order: the mean, two parts of the
    variance, and the covariances ig, fo, io, go.
    """

    def __init__(self, layer: LSTM) -> None:
        n, gates = layer.input_size, 4 * layer.output_size
        w = layer.mu_w.permute(2, 0, 1)  # (input + output, gate, unit)
        s = layer.var_w.permute(2, 0, 1).flatten(1)
        products = (w.index_select(1, layer.first) * w.index_select(1, layer.second)).flatten(1)
        stacked = torch.stack((w.flatten(1), s, s + products[:, :gates], products[:, gates : 2 * gates]))
        self.mu_x, self.mu_h = w[:n].flatten(1), w[n:].flatten(1)
        self.products_x, self.products_h = products[:n], products[n:]
        self.of_x, self.of_h = stacked[:, :n], stacked[:, n:]
        if layer.compat == "cutagi":  # omits the recurrent inputs from the covariances with o
            parts = self.of_h.unflatten(2, (4, layer.output_size))
            self.of_h = torch.cat((parts[:3].flatten(2), F.pad(parts[3:, :, :1], (0, 0, 0, 3)).flatten(2)))

    def of_input(self, x: Gaussian, layer: LSTM) -> Tensor:
        """Moments (4, batch, time, gate unit) of the gates' inputs, without the recurrent part."""
        squares = x.mu * x.mu
        rows = (x.mu, squares) if x.var is None else (x.mu, squares, x.var, x.var)
        z = product(torch.stack(rows).flatten(1, 2), self.of_x[: len(rows)]).unflatten(1, x.mu.shape[:2])
        if layer.mu_b is not None and layer.var_b is not None:
            biases = torch.stack((layer.mu_b.flatten(), layer.var_b.flatten()))
            z = z + F.pad(biases, (0, 0, 0, len(rows) - 2))[:, None, None]
        return z if x.var is not None else torch.cat((z, torch.zeros_like(z)))

    def plus_recurrent(self, z: Tensor, states: LSTMStates) -> Tensor:
        """The moments `z` plus the contribution of h_(t-1)."""
        rows = torch.stack((states.mu_h, states.mu_h * states.mu_h, states.var_h, states.var_h))
        return product(rows, self.of_h, plus=z)


def _cell(z: Tensor, states: LSTMStates | None, n: int) -> tuple[LSTMStates, _Step]:
    """One time step: from the moments of the gates' inputs to the new states."""
    z = z.unflatten(2, (4, n))  # (4, batch, gate, unit)
    mu_z, var_z, (c_ig, c_fo, c_io, c_go) = z[0], z[1] + z[2], z[3].unbind(1)
    f, i, o = (torch.sigmoid(mu_z[:, q]) for q in (_F, _I, _O))
    g = torch.tanh(mu_z[:, _G])
    j_f, j_i, j_g, j_o = f * (1.0 - f), i * (1.0 - i), 1.0 - g * g, o * (1.0 - o)
    jacobians = torch.stack((j_f, j_i, j_g, j_o), 1)
    v_f, v_i, v_g, v_o = (jacobians * jacobians * var_z).unbind(1)

    mu_c, var_c = i * g, v_i * v_g + v_i * g * g + v_g * i * i
    c_ig = c_ig * j_i * j_g
    var_c = var_c + c_ig * (c_ig + 2.0 * mu_c)
    mu_c = mu_c + c_ig
    if states is not None:
        c_p, v_p = states.mu_c, states.var_c
        mu_c = mu_c + f * c_p
        var_c = var_c + v_p * (f * f + v_f) + v_f * c_p * c_p

    a = torch.tanh(mu_c)
    j_a = 1.0 - a * a
    v_a = j_a * j_a * var_c
    mu_h, var_h = o * a, v_a * (o * o + v_o) + v_o * a * a
    g_f = torch.zeros_like(g) if states is None else j_f * states.mu_c
    g_i, g_g = j_i * g, j_g * i
    c_oa = c_io * g_i + c_go * g_g + c_fo * g_f
    c_oa = c_oa * j_a * j_o
    var_h = var_h + c_oa * (c_oa + 2.0 * mu_h)
    mu_h = mu_h + c_oa
    slopes = torch.stack((g_f, g_i, g_g, j_o * a), 1)
    new = LSTMStates(mu_h, var_h.clamp_min(0.0), mu_c, var_c.clamp_min(0.0))
    return new, _Step(None if states is None else states.mu_h, slopes, j_a * o, f)


def _gate_innovations(h: Innovation, c: Innovation, step: _Step) -> tuple[Tensor, Tensor, Tensor]:
    """Innovations (batch, 4, unit) of the gates' means and variances; coefficients (batch, 10, unit) of W_q W_r."""
    g_f, g_i, g_g, g_o = step.slopes.unbind(1)
    e = step.slopes * torch.stack((c.mu, c.mu, c.mu, h.mu), 1)
    e_var = step.slopes * step.slopes * torch.stack((c.var, c.var, c.var, h.var), 1)
    within, across = 2.0 * c.var, 2.0 * h.var * step.r * g_o
    cross = torch.stack(
        (within * g_i * g_g, across * g_f, across * g_i, across * g_g, within * g_f * g_i, within * g_f * g_g), 1
    )
    return e, e_var, torch.cat((e_var, cross), 1)
