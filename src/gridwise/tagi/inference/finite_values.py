"""Checks for values that no network can use, made before anything is computed with them.

    inputs                       finite in the network's precision
    their variances, and noise   the same, and not negative
    observations                 the same as inputs, or NaN, which means missing

One bad value ruins every parameter in one step. The check is one pass over the values, 2 us for a small batch. Values
that are already on a GPU are not checked: the host would have to wait for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ArgumentError
from ..nn.data_struct import as_tensor, of_anything
from .tracing import is_traced

_FIXES = {
    "input": "fill it or leave the row out; only observations may be NaN, which means missing.",
    "variance": "a variance is zero or more, and finite.",
    "observation": "NaN for a missing value.",
}


def as_inputs(value: object, like: Tensor | None, name: str = "mu_x") -> Tensor:
    """`value` as a tensor like `like`; raises for values that are not finite in its type."""
    return _checked(value, like, name, "input")


def as_variances(value: object, like: Tensor | None, name: str) -> Tensor:
    """`value` as a tensor like `like`; raises for values that are negative, or not finite in its type."""
    return _checked(value, like, name, "variance")


def as_observations(value: object, like: Tensor | None, name: str = "mu_obs") -> Tensor:
    """`value` as a tensor like `like`; raises for values that are infinite in its type. NaN is a missing value."""
    return _checked(value, like, name, "observation")


def check_inputs(value: Tensor, what: str, name: str) -> None:
    """Raise for the first NaN or infinity in `value`, on whichever device it is."""
    _check(value, value.dtype, f"{what}: `{name}`", "input")


def _checked(value: object, like: Tensor | None, name: str, kind: str) -> Tensor:
    value = of_anything(value, like)
    if value.device.type == "cpu" and not is_traced():
        _check(value, torch.get_default_dtype() if like is None else like.dtype, f"`{name}`", kind)
    return as_tensor(value, like)


def _check(value: Tensor, dtype: torch.dtype, name: str, kind: str) -> None:
    if not value.numel() or value.is_complex():
        return
    largest = torch.finfo(dtype).max if dtype.is_floating_point else float("inf")
    least = 0.0 if kind == "variance" else -largest
    low, high = (float(t) for t in torch.aminmax(value))
    if low >= least and high <= largest:  # false for NaN
        return
    fine = (value >= least) & (value <= largest)
    if kind == "observation":
        fine |= torch.isnan(value)
    if bool(fine.all()):
        return
    place = (~fine).nonzero()[0].tolist()
    found = float(value[tuple(place)])
    fix = _FIXES[kind]
    if largest < abs(found) < float("inf"):
        fix = f"{dtype} has no number beyond {largest:.3g}: values of moderate size, or a network in float64."
    raise ArgumentError(f"{name} has {found:g}{_words(place)}.\n  fix: {fix}")


def _words(place: list[int]) -> str:
    if not place:
        return ""
    row, *column = place
    return f" in row {row}" + (f", column {column[0] if len(column) == 1 else tuple(column)}" if column else "")
