"""`help` and editors show the arguments of a layer."""

from __future__ import annotations

import inspect

import pytest
import torch

import gridwise

LAYERS = {
    name: layer
    for name, layer in vars(gridwise.nn).items()
    if inspect.isclass(layer) and issubclass(layer, gridwise.nn.Module) and layer is not gridwise.nn.Module
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_a_layer_shows_its_own_arguments(name: str) -> None:
    shown = inspect.signature(LAYERS[name]).parameters
    made = list(inspect.signature(LAYERS[name].__init__).parameters)[1:]
    assert list(shown) == made
    assert shown
    assert not any(each.kind is each.VAR_POSITIONAL and each.name == "args" for each in shown.values())


def test_convolutions_show_torchs_arguments_after_the_partition() -> None:
    first, *others = inspect.signature(gridwise.nn.DistributedConv2d).parameters
    assert first == "P_x"
    assert set(inspect.signature(torch.nn.Conv2d).parameters) <= set(others)
    assert {"P_y", "P_w"} <= set(others)


@pytest.mark.parametrize("name", sorted(name for name in LAYERS if name.endswith("Loss")))
def test_losses_know_all_that_torchs_take(name: str) -> None:
    """Their arguments are torch's own: one that a later torch adds must not be taken and passed over."""
    torchs = list(inspect.signature(getattr(torch.nn, name.removeprefix("Distributed"))).parameters)
    known = {*LAYERS[name]._settings, "size_average", "reduce", "weight", "pos_weight"}
    assert list(inspect.signature(LAYERS[name]).parameters) == ["P_x", *torchs]
    assert set(torchs) <= known
