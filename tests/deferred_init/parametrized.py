"""Norms of weights, parametrizations and pruning, as constructors to defer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from .registry import case


@case
def old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(6, 4))


@case
def old_spectral_norm() -> nn.Module:
    return nn.utils.spectral_norm(nn.Conv2d(3, 4, 3))


@case
def weight_norm() -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(6, 4))


@case
def spectral_norm() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(6, 4), n_power_iterations=3)


@case
def orthogonal_parametrization() -> nn.Module:
    return parametrizations.orthogonal(nn.Linear(6, 6))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x: Tensor) -> Tensor:
        return x.triu()


@case
def own_parametrization() -> nn.Module:
    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


@case
def removed_parametrization() -> nn.Module:
    layer = own_parametrization()
    parametrize.remove_parametrizations(layer, "weight")
    return layer


@case
def pruned() -> nn.Module:
    from torch.nn.utils import prune

    layer = nn.Linear(8, 8)
    prune.l1_unstructured(layer, "weight", amount=0.3)
    return layer
