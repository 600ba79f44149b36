"""Innovations of the output units from observations.

For an output a ~ N(m, v) with Jacobian J and an observation y of a with noise variance s:

    delta = J (y - m) / (v + s)          Delta = -J**2 / (v + s)

and zero where y is missing (NaN) or v + s = 0. With indices, only some units of each sample are observed. In
heteroscedastic regression (AGVI) outputs alternate between (m0, v0), a mean, and (a, q), the expected variance
a = E[V**2] of the noise V on it, itself uncertain with variance q:

    S = v0 + a                                delta_0 = J0 (y - m0) / S            Delta_0 = -J0**2 / S
    V    | y:  mean = a (y - m0) / S,         variance = a - a**2 / S
    V**2 | y:  mean+ = mean**2 + variance,    variance+ = 2 variance**2 + 4 variance mean**2
    V**2 before:  a,                          3 q + 2 a**2                         k = q / (3 q + 2 a**2)
    delta_1 = (J1 / q) k (mean+ - a)          Delta_1 = (J1 / q)**2 k**2 (variance+ - 3 q - 2 a**2)

The last line is computed relative to a and S, because the square of a large variance overflows:

    h = a / S,   g = v0 / S,   z = (y - m0)**2 / S,   r = 3 q / a**2 + 2
    delta_1 = (J1 / a) h (z - 1) / r          Delta_1 = (J1 / a)**2 ((2 g**2 + 4 g h z) / r - 1) / r
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ArgumentError
from ..inference.finite_values import as_observations, as_variances
from .data_struct import BaseDeltaStates, BaseHiddenStates, Values
from .gaussian import Gaussian, Innovation


def observe(out: Gaussian, y: Tensor, noise: Tensor) -> Innovation:
    """Innovations of all output units, each observed once."""
    y, noise = _shaped(out, out.mu.shape, y, noise)
    return Innovation(*_gaussian_update(out.mu, out.variance(), out.jcb, y, noise))


def observe_at(out: Gaussian, y: Tensor, noise: Tensor, index: Tensor) -> Innovation:
    """Innovations where only the units `index` (counted from 1, one row per sample) are observed."""
    batch = out.mu.shape[0]
    rows = out.reshape(batch, out.mu.shape[1:].numel())
    if index.numel() % batch if batch else index.numel():
        raise ArgumentError(f"{index.numel()} indices came in for {batch} samples.\n  fix: as many for each sample.")
    at = index.reshape(batch, index.numel() // max(batch, 1)) - 1
    y, noise = _shaped(out, at.shape, y, noise)
    jcb = None if rows.jcb is None else rows.jcb.gather(1, at)
    delta, delta_var = _gaussian_update(rows.mu.gather(1, at), rows.variance().gather(1, at), jcb, y, noise)
    zeros = torch.zeros_like(rows.mu)
    return Innovation(zeros.scatter(1, at, delta), zeros.scatter(1, at, delta_var)).reshape(*out.mu.shape)


def observe_heteros(out: Gaussian, y: Tensor) -> Innovation:
    """Innovations of outputs that alternate between a mean and the variance of the noise on it."""
    mu, var, jcb = out.mu, out.variance(), out.jacobian()
    m0, v0, j0 = mu[..., 0::2], var[..., 0::2], jcb[..., 0::2]
    a, q, j1 = mu[..., 1::2], var[..., 1::2], jcb[..., 1::2]
    if m0.shape != a.shape:
        raise ArgumentError(
            f"the output of shape {tuple(mu.shape)} has an odd number of units.\n"
            "  fix: two for each observed quantity, its mean and the variance of its noise."
        )
    y, _ = _shaped(out, m0.shape, y, y.new_zeros(()))
    total = v0 + a
    h, g = a / total, v0 / total
    z = ((y - m0) * ((y - m0) / total)).clamp_max(torch.finfo(mu.dtype).max / 16)
    r = 3.0 * (q / a / a) + 2.0
    gain = j1 / a
    even = Innovation(j0 * ((y - m0) / total), -j0 * (j0 / total))
    odd = Innovation(gain * h * (z - 1.0) / r, gain * gain * ((2.0 * g * g + 4.0 * g * h * z) / r - 1.0) / r)
    # not finite where the observation is missing or a variance is zero
    known = torch.stack([torch.isfinite(mean) & torch.isfinite(spread) for mean, spread in (even, odd)], -1)
    pairs = (torch.where(known, torch.stack(pair, -1), 0.0) for pair in zip(even, odd, strict=True))
    return Innovation(*(p.reshape(mu.shape) for p in pairs))


def _shaped(out: Gaussian, shape: torch.Size, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Observations in the given shape, and their noise: a scalar, or of the same shape."""
    wanted = shape.numel()
    if y.numel() != wanted or noise.numel() not in (1, wanted):
        raise ArgumentError(
            f"{y.numel()} observations with {noise.numel()} variances came in, {wanted} are needed for outputs of shape "
            f"{tuple(out.mu.shape)}."
        )
    return y.reshape(shape), noise.reshape(shape if noise.numel() == wanted else ())


def _gaussian_update(m: Tensor, v: Tensor, jcb: Tensor | None, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    gain = torch.reciprocal(v + noise) if jcb is None else jcb / (v + noise)
    usable = torch.isfinite(gain * y)  # False for a zero variance and for a missing value
    delta_var = -gain if jcb is None else -gain * jcb
    return torch.where(usable, gain * (y - m), 0.0), torch.where(usable, delta_var, 0.0)


class OutputUpdater:
    """Computes the innovations that `Sequential.backward` starts from, from observations.

    Parameters
    ----------
    model_device
        The device of the network, to which observations are moved.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 1))
    >>> updater = nn.OutputUpdater(net.device)
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> updater.update(net.output_z_buffer, np.zeros(2, 'float32'), np.full(2, 0.1, 'float32'), net.input_delta_z_buffer)
    >>> net.backward()
    >>> net.step()
    """

    def __init__(self, model_device: str = "cpu") -> None:
        self.device = model_device

    @torch.no_grad()
    def update(
        self, output_states: BaseHiddenStates, mu_obs: Values, var_obs: Values, delta_states: BaseDeltaStates
    ) -> None:
        """Observe every output unit as `mu_obs`, NaN where missing, with noise variance `var_obs`."""
        out = output_states.gaussian
        delta_states.set_from(lambda: observe(out, *self._observation(out, mu_obs, var_obs)))

    @torch.no_grad()
    def update_using_indices(
        self,
        output_states: BaseHiddenStates,
        mu_obs: Values,
        var_obs: Values,
        selected_idx: object,
        delta_states: BaseDeltaStates,
    ) -> None:
        """Observe only the units `selected_idx` of each sample, counted from 1."""
        out = output_states.gaussian
        delta_states.set_from(
            lambda: observe_at(out, *self._observation(out, mu_obs, var_obs), as_indices(out, selected_idx))
        )

    @torch.no_grad()
    def update_heteros(self, output_states: BaseHiddenStates, mu_obs: Values, delta_states: BaseDeltaStates) -> None:
        """Observe the means, as `mu_obs`, of outputs that alternate between a mean and a noise variance."""
        out = output_states.gaussian
        delta_states.set_from(lambda: observe_heteros(out, as_observations(mu_obs, out.mu)))

    def _observation(self, out: Gaussian, mu_obs: Values, var_obs: Values) -> tuple[Tensor, Tensor]:
        return as_observations(mu_obs, out.mu), as_variances(var_obs, out.mu, "var_obs")


def as_indices(out: Gaussian, selected_idx: object) -> Tensor:
    """Indices of output units, counted from 1, on the device of `out`; raises for those that it does not have."""
    index = torch.as_tensor(selected_idx).to(out.mu.device, torch.long)
    batch, units = out.mu.shape[0], out.mu.shape[1:].numel()
    if index.numel() and not (1 <= int(index.min()) <= int(index.max()) <= units):
        raise ArgumentError(
            f"{index.numel()} indices, from {int(index.min())} to {int(index.max())}, came in for {batch} samples of {units} "
            "units.\n"
            f"  fix: as many for each sample, each from 1 to {units}."
        )
    return index
