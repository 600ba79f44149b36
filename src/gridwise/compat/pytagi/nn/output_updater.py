"""Observations to innovations: Gridwise's own, for a vector of noise that is longer than a short last batch."""

from __future__ import annotations

from torch import Tensor

from gridwise.tagi.nn import output_updater as own
from gridwise.tagi.nn.data_struct import Values, of_anything
from gridwise.tagi.nn.gaussian import Gaussian


class OutputUpdater(own.OutputUpdater):
    """Each observation has the noise at its own place of `var_obs`; the rest is ignored."""

    def _observation(self, out: Gaussian, mu_obs: Values, var_obs: Values) -> tuple[Tensor, Tensor]:
        noise, wanted = of_anything(var_obs), of_anything(mu_obs).numel()
        longer = noise.numel() > max(wanted, 1)
        return super()._observation(out, mu_obs, noise.reshape(-1)[:wanted] if longer else var_obs)
