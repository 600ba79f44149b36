"""The base of pytagi's layers: each wraps a layer of Gridwise and has pytagi's attributes.

Parameters and innovations are read as flat lists, copies of the layer's values, and can be set from anything flat.
Every other attribute is that of the wrapped layer, `_layer`, with which networks compute.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor

from gridwise.errors import ArgumentError
from gridwise.tagi.nn.base_layer import BaseLayer as GridwiseLayer
from gridwise.tagi.nn.base_layer import ParametricLayer
from gridwise.tagi.nn.data_struct import as_tensor

from .sizes import NAMES, shown_size

INNOVATIONS = {"delta_mu_w": ("w", 1), "delta_var_w": ("w", 2), "delta_mu_b": ("b", 1), "delta_var_b": ("b", 2)}


def unwrapped(value: object) -> Any:
    """The Gridwise layer wrapped by one of pytagi's; any other value unchanged."""
    return value._layer if isinstance(value, BaseLayer) else value


def wrapped(layer: object) -> Any:
    """A pytagi layer that wraps this Gridwise layer."""
    kind = next(_wrapper_of[cls] for cls in type(layer).__mro__ if cls in _wrapper_of)
    made = kind.__new__(kind)
    made.__dict__["_layer"] = layer
    return made


def _parameter(name: str) -> property:
    def read(self: BaseLayer) -> list[float]:
        tensor = self._tensor(name)
        return [] if tensor is None else tensor.detach().reshape(-1).tolist()

    def write(self: BaseLayer, value: object) -> None:
        tensor = self._tensor(name)
        if tensor is None:
            raise ArgumentError(f"{self._layer.get_layer_info()}: there is no `{name}` to set.")
        tensor.data.copy_(self._fitting(name, value, tensor))

    return property(read, write, doc=f"`{name}`, a flat list.")


def _innovation(name: str) -> property:
    kind, power = INNOVATIONS[name]

    def read(self: BaseLayer) -> list[float]:
        var = self._tensor(f"var_{kind}")
        found = None if var is None else getattr(self._layer, name)
        return [] if var is None else (torch.zeros_like(var) if found is None else found).reshape(-1).tolist()

    def write(self: BaseLayer, value: object) -> None:
        """Set the sums that the next step multiplies by the variance, or its square, to get this innovation."""
        var = self._tensor(f"var_{kind}")
        if var is None:
            raise ArgumentError(f"{self._layer.get_layer_info()}: there are no parameters whose `{name}` could be set.")
        sums = list(self._layer.sums.get(kind, (torch.zeros_like(var), torch.zeros_like(var))))
        sums[power - 1] = self._fitting(name, value, var) / var**power
        self._layer.sums[kind] = (sums[0], sums[1])

    return property(read, write, doc=f"`{name}`, a flat list: what the next step adds, before the cap.")


def _count(name: str) -> property:
    def read(self: BaseLayer) -> int:
        return getattr(self._layer, name) if isinstance(self._layer, ParametricLayer) else 0

    def write(self: BaseLayer, value: int) -> None:
        if value != read(self):
            raise ArgumentError(
                f"{self._layer.get_layer_info()}: `{name}` cannot be set to {value}, the layer has {read(self)}.\n"
                "  fix: construct a layer of another size."
            )

    return property(read, write)


def _size(name: str) -> property:
    def write(self: BaseLayer, value: int) -> None:
        setattr(self._layer, name, value)

    return property(lambda self: shown_size(self._layer, name), write)


class BaseLayer:
    """A layer with pytagi's attributes that wraps a Gridwise layer made from the same arguments."""

    _wraps: ClassVar[Any] = GridwiseLayer
    _layer: Any

    mu_w, var_w, mu_b, var_b = map(_parameter, ("mu_w", "var_w", "mu_b", "var_b"))
    delta_mu_w, delta_var_w, delta_mu_b, delta_var_b = map(_innovation, INNOVATIONS)
    input_size, in_width, in_height, in_channels, output_size, out_width, out_height, out_channels = map(_size, NAMES)
    num_weights, num_biases = map(_count, ("num_weights", "num_biases"))
    num_threads = property(lambda self: torch.get_num_threads(), lambda self, value: torch.set_num_threads(value))
    bias = property(lambda self: bool(getattr(self._layer, "bias", False)), lambda self, value: self._set_bias(value))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__["_layer"] = self._wraps(
            *map(unwrapped, args), **{name: unwrapped(v) for name, v in kwargs.items()}
        )

    def __init_subclass__(cls) -> None:
        if "_wraps" not in cls.__dict__:  # a user's class
            return
        _wrapper_of[cls._wraps] = cls
        if "__init__" not in cls.__dict__:
            cls.__signature__ = inspect.signature(cls._wraps)  # type: ignore[attr-defined]
            cls.__doc__ = cls._wraps.__doc__

    def __getattr__(self, name: str) -> Any:
        if name == "_layer" or name.startswith("__"):  # not set yet, as while copying
            raise AttributeError(name)
        return getattr(self._layer, name)

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(self._layer, name, unwrapped(value))

    def get_max_num_states(self) -> int:
        """The larger of the input and output sizes of one sample."""
        return max(self._layer.input_size, self._layer.output_size)

    def __repr__(self) -> str:
        return repr(self._layer)

    def _set_bias(self, value: bool) -> None:
        if bool(value) != self.bias:
            has = "has" if self.bias else "has no"
            raise ArgumentError(
                f"{self._layer.get_layer_info()}: `bias` cannot be set to {value}, the layer {has} biases.\n"
                "  fix: construct a layer of the other kind."
            )

    def _tensor(self, name: str) -> Any:
        return getattr(self._layer, name) if isinstance(self._layer, ParametricLayer) else None

    def _fitting(self, name: str, value: object, tensor: Tensor) -> Tensor:
        given = as_tensor(value, tensor)
        if given.numel() != tensor.numel():
            raise ArgumentError(
                f"{self._layer.get_layer_info()}: {given.numel()} values came in for `{name}`, which has {tensor.numel()}."
            )
        return given.reshape(tensor.shape)


_wrapper_of: dict[type, type[BaseLayer]] = {GridwiseLayer: BaseLayer}
