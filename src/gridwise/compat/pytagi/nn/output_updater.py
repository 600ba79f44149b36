"""Observations to innovations: Gridwise's own, for a vector of noise that is longer than a short last batch."""

from __future__ import annotations

from typing import Any

from gridwise.tagi.nn import output_updater as own
from gridwise.tagi.nn.data_struct import BaseDeltaStates, BaseHiddenStates, Values, of_anything


class OutputUpdater(own.OutputUpdater):
    """Each observation has the noise at its own place of `var_obs`; the rest is ignored."""

    def update(
        self, output_states: BaseHiddenStates, mu_obs: Values, var_obs: Values, delta_states: BaseDeltaStates
    ) -> None:
        super().update(output_states, mu_obs, _as_long(var_obs, mu_obs), delta_states)

    def update_using_indices(
        self,
        output_states: BaseHiddenStates,
        mu_obs: Values,
        var_obs: Values,
        selected_idx: object,
        delta_states: BaseDeltaStates,
    ) -> None:
        super().update_using_indices(output_states, mu_obs, _as_long(var_obs, mu_obs), selected_idx, delta_states)


def _as_long(var_obs: Values, mu_obs: Values) -> Any:
    noise, wanted = of_anything(var_obs), of_anything(mu_obs).numel()
    return noise.reshape(-1)[:wanted] if noise.numel() > max(wanted, 1) else var_obs
