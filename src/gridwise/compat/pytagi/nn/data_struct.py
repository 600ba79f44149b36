"""pytagi's buffers: flat arrays of the last batch, to read and to set; they resize to fit what is set."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridwise.tagi.nn import data_struct as own
from gridwise.tagi.nn.data_struct import HRCSoftmax as HRCSoftmax
from gridwise.tagi.nn.data_struct import of_anything
from gridwise.tagi.nn.gaussian import Innovation


def _flat(of: str, base: object) -> property:
    """An attribute of Gridwise's buffer as a flat array; on the CPU it shares the buffer's memory."""
    attribute = getattr(base, of)

    def read(self: Any) -> np.ndarray:
        return attribute.fget(self).reshape(-1).cpu().numpy()

    def write(self: Any, value: object) -> None:
        values = of_anything(value)
        if values.numel() != self.size:
            self.set_size(
                values.numel(), self.block_size if self.block_size and not values.numel() % self.block_size else 1
            )
        attribute.fset(self, values)

    return property(read, write)


class BaseHiddenStates(own.BaseHiddenStates):
    """Means, variances and Jacobians of a layer's units."""

    mu_a, var_a, jcb = (_flat(name, own.BaseHiddenStates) for name in ("mu_a", "var_a", "jcb"))

    def set_size(self, new_size: int, new_block_size: int) -> str:
        return super().set_size(new_size, new_block_size)


class BaseDeltaStates(own.BaseDeltaStates):
    """Innovations of a layer's units."""

    delta_mu, delta_var = (_flat(name, own.BaseDeltaStates) for name in ("delta_mu", "delta_var"))

    def set_size(self, new_size: int, new_block_size: int) -> str:
        return super().set_size(new_size, new_block_size)

    def copy_from(self, source: own.BaseDeltaStates, num_data: int = -1) -> None:
        """Take the first `num_data` values of `source`, or all of them; a smaller buffer grows."""
        if self.size < num_data <= source.size:
            mu, var = (t.reshape(-1)[:num_data].clone() for t in source.innovation)
            self.innovation = Innovation(mu[None], var[None])
        else:
            super().copy_from(source, num_data)
