"""Docstrings of a family come from one text, adapted to the name, the dims and the partitions of each layer."""

from __future__ import annotations

import inspect

import pytest

import gridwise
from gridwise.nn.docstrings import LayerFamily, adapted, documented_like

FAMILIES = ("Conv", "ConvTranspose", "MaxPool", "AvgPool", "AdaptiveMaxPool", "ZeroPad", "MaxUnpool", "InstanceNorm")
LAYERS = "gridwise.nn.layers"
UNPOOLING = [f"DistributedMaxUnpool{dims}d" for dims in (1, 2, 3)]
WITHOUT_SHAPES = [*UNPOOLING, "DistributedPoolingBase"]
"""A base, and layers whose first argument is called values."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dims", "axes"), [(1, "length"), (2, "height, width"), (3, "depth, height, width")])
def test_each_layer_of_a_family_has_its_own_name_and_axes(family: str, dims: int, axes: str) -> None:
    doc = getattr(gridwise.nn, f"Distributed{family}{dims}d").__doc__
    assert doc.startswith(f"`torch.nn.{family}{dims}d`")
    assert f"(batch, channel, {axes})" in doc
    assert f"([{', '.join(['1'] * (dims + 2))}])" in doc, "the partition of the example"
    assert not any(f"{other}d" in doc for other in {1, 2, 3} - {dims})


def test_every_layer_says_which_shapes_it_takes() -> None:
    layers = {kind for kind in vars(gridwise.nn).values() if getattr(kind, "__module__", "").startswith(LAYERS)}
    lacking = [kind.__name__ for kind in layers if "\n\nShape\n-----\n- input" not in (inspect.getdoc(kind) or "")]
    assert len(layers) > 60
    assert sorted(lacking) == WITHOUT_SHAPES


def test_arguments_of_other_families_are_named() -> None:
    for name in ("FeatureConv1d", "ChannelConv2d", "GeneralConv3d"):
        doc = inspect.getdoc(getattr(gridwise.nn, f"Distributed{name}")) or ""
        assert f"gridwise.nn.Distributed{name}(" in doc
        assert f"torch.nn.{name}" not in doc, "there is no such layer"


def test_sections_that_a_class_writes_itself_are_kept() -> None:
    def first() -> None:
        """One.

        Parameters
        ----------
        x : of first

        Examples
        --------
        >>> first()
        """

    @documented_like(first)
    def second() -> None:
        """Two.

        Parameters
        ----------
        x : another
        """

    assert second.__doc__ == "Two.\n\nParameters\n----------\nx : another\n\nExamples\n--------\n>>> second()"


def test_extents_follow_the_dims() -> None:
    text = "`torch.nn.Pool2d`: torch.ones(2, 3, 8, 8) is torch.Size([2, 3, 4, 4])"
    assert (
        adapted(text, "Pool2d", "Pool3d")
        == "`torch.nn.Pool3d`: torch.ones(2, 3, 8, 8, 8) is torch.Size([2, 3, 4, 4, 4])"
    )
    assert adapted(text, "Pool2d", "Other1d") == "`torch.nn.Other1d`: torch.ones(2, 3, 8) is torch.Size([2, 3, 4])"


def test_the_base_of_all_families_describes_no_layer() -> None:
    class DistributedReLU(LayerFamily):
        pass

    assert DistributedReLU.__doc__ is None
