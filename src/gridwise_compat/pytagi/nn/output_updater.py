"""From observations to innovations: Gridwise's own, but noise may have more values than a short last batch."""

from __future__ import annotations

from torch import Tensor

from gridwise.tagi.nn import output_updater as own
from gridwise.tagi.nn.data_struct import Values, of_anything
from gridwise.tagi.nn.gaussian import Gaussian

from .data_struct import BaseDeltaStates as BaseDeltaStates
from .data_struct import BaseHiddenStates as BaseHiddenStates


class OutputUpdater(own.OutputUpdater):
    """Each observation uses the noise at its position in `var_obs`; surplus values are ignored."""

    def _observation(self, out: Gaussian, mu_obs: Values, var_obs: Values) -> tuple[Tensor, Tensor]:
        noise, wanted = of_anything(var_obs), of_anything(mu_obs).numel()
        longer = noise.numel() > max(wanted, 1)
        return super()._observation(out, mu_obs, noise.reshape(-1)[:wanted] if longer else var_obs)
