"""Activations: Gridwise's own, with pytagi's attributes."""

from __future__ import annotations

from typing import Any

from gridwise.tagi.nn import activation as own
from gridwise.tagi.nn import agvi

from .base_layer import BaseLayer


class ClosedFormSoftmax(BaseLayer):
    _own = own.ClosedFormSoftmax


class EvenExp(BaseLayer):
    _own = own.EvenExp


class Exp(BaseLayer):
    _own = own.Exp


class LeakyReLU(BaseLayer):
    _own = own.LeakyReLU


class MixtureReLU(BaseLayer):
    _own = own.MixtureReLU


class MixtureSigmoid(BaseLayer):
    _own = own.MixtureSigmoid


class MixtureTanh(BaseLayer):
    _own = own.MixtureTanh


class ReLU(BaseLayer):
    _own = own.ReLU


class Remax(BaseLayer):
    _own = own.Remax


class Sigmoid(BaseLayer):
    _own = own.Sigmoid


class Softmax(BaseLayer):
    _own = own.Softmax


class Softplus(BaseLayer):
    _own = own.Softplus


class SplitActivation(BaseLayer):
    _own = own.SplitActivation


class Tanh(BaseLayer):
    _own = own.Tanh


class AGVI(BaseLayer):
    """`AGVI(activation_layer, overfit_mu, agvi)`, and the later `AGVI(odd_layer, even_layer, overfit_mu, agvi)`."""

    _own = agvi.AGVI

    def __init__(self, activation_layer: object = None, *rest: Any, **options: Any) -> None:
        odd = options.pop("odd_layer", activation_layer)
        super().__init__(odd, *((None, *rest) if rest and isinstance(rest[0], bool) else rest), **options)
