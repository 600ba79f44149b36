"""pytagi's buffers: flat lists of the last batch, to read and to set; they resize to fit what is set."""

from __future__ import annotations

from typing import Any

from gridwise.tagi.nn import data_struct as own
from gridwise.tagi.nn.data_struct import of_anything
from gridwise.tagi.nn.gaussian import Innovation


def _flat(of: str, base: object) -> property:
    """An attribute of Gridwise's buffer as a flat list, a copy."""
    attribute = getattr(base, of)

    def read(self: Any) -> list[float]:
        found: list[float] = attribute.fget(self).reshape(-1).tolist()
        return found

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


class HRCSoftmax(own.HRCSoftmax):
    """The tree of classes, with its turns and nodes as lists."""

    obs: list[float]  # type: ignore[assignment]
    idx: list[int]  # type: ignore[assignment]

    def __init__(self, tree: own.HRCSoftmax | None = None) -> None:
        tree = tree or own.HRCSoftmax()
        self.obs, self.idx, self.num_obs, self.len = tree.obs.tolist(), tree.idx.tolist(), tree.num_obs, tree.len
