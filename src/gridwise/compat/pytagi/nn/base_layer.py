"""What pytagi's layers let their users set: parameters as flat arrays, innovations, and numbers of parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridwise.errors import PartitionError
from gridwise.tagi.nn.base_layer import BaseLayer as GridwiseLayer
from gridwise.tagi.nn.base_layer import ParametricLayer
from gridwise.tagi.nn.data_struct import as_tensor

PARAMETERS = ("mu_w", "var_w", "mu_b", "var_b")
INNOVATIONS = {
    "delta_mu_w": ("w", 1),
    "delta_var_w": ("w", 2),
    "delta_mu_b": ("b", 1),
    "delta_var_b": ("b", 2),
}


class BaseLayer(GridwiseLayer):
    """A layer whose attributes can be set as pytagi's can."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARAMETERS and not isinstance(value, torch.nn.Parameter | type(None)):
            self._set_parameter(name, value)
        elif name in INNOVATIONS and isinstance(self, ParametricLayer):
            self._set_innovation(name, value)
        elif name in ("num_weights", "num_biases") and isinstance(self, ParametricLayer):
            if value != getattr(self, name):
                raise PartitionError(
                    f"{self.get_layer_info()}: `{name}` cannot be set to {value}, the layer has {getattr(self, name)}.\n"
                    "  fix: construct a layer of another size."
                )
        else:
            super().__setattr__(name, value)

    def _set_parameter(self, name: str, value: Any) -> None:
        held = getattr(self, name, None)
        if held is None:
            raise PartitionError(f"{self.get_layer_info()}: there is no `{name}` to set.")
        held.data.copy_(self._fitting(name, value, held))

    def _set_innovation(self, name: str, value: Any) -> None:
        """The sums of which the next step makes this innovation: it multiplies them by the variance, or by its square."""
        assert isinstance(self, ParametricLayer)
        kind, power = INNOVATIONS[name]
        var = next((var for n, _, var in self.pairs() if n == kind), None)
        if var is None:
            raise PartitionError(f"{self.get_layer_info()}: there are no biases whose `{name}` could be set.")
        sums = list(self.sums.get(kind, (torch.zeros_like(var), torch.zeros_like(var))))
        sums[power - 1] = self._fitting(name, value, var) / var**power
        self.sums[kind] = (sums[0], sums[1])

    def _fitting(self, name: str, value: Any, held: Tensor) -> Tensor:
        given = as_tensor(value, held)
        if given.numel() != held.numel():
            raise PartitionError(
                f"{self.get_layer_info()}: {given.numel()} values came in for `{name}`, which has {held.numel()}."
            )
        return given.reshape(held.shape)
