"""pytagi's buffers: flat arrays of the last batch, which can be read and set."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridwise.tagi.nn import data_struct as own
from gridwise.tagi.nn.data_struct import HRCSoftmax as HRCSoftmax


def _flat(of: str) -> Any:
    """An attribute of Gridwise's buffer as a flat array; on a CPU it is the buffer's own memory."""

    def read(self: Any) -> np.ndarray:
        return getattr(super(self._flat_in, self), of).reshape(-1).cpu().numpy()

    def write(self: Any, value: Any) -> None:
        base: Any = getattr(own, self._flat_in.__name__)
        getattr(base, of).fset(self, value)

    return property(read, write)


class BaseHiddenStates(own.BaseHiddenStates):
    """Means, variances and Jacobians of a layer's units."""

    mu_a, var_a, jcb = _flat("mu_a"), _flat("var_a"), _flat("jcb")

    def set_size(self, new_size: int, new_block_size: int) -> str:
        return super().set_size(new_size, new_block_size)


class BaseDeltaStates(own.BaseDeltaStates):
    """Innovations of a layer's units."""

    delta_mu, delta_var = _flat("delta_mu"), _flat("delta_var")

    def set_size(self, new_size: int, new_block_size: int) -> str:
        return super().set_size(new_size, new_block_size)


BaseHiddenStates._flat_in = BaseHiddenStates  # type: ignore[attr-defined]
BaseDeltaStates._flat_in = BaseDeltaStates  # type: ignore[attr-defined]
