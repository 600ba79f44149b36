"""`help` and editors show the arguments of a layer, and a call takes them by name."""

from __future__ import annotations

import inspect

import pytest
import torch

import gridwise
from gridwise.testing import workers

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


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_a_call_takes_torchs_arguments(name: str) -> None:
    sequential = getattr(torch.nn, name.removeprefix("Distributed"), None)
    shown = list(inspect.signature(LAYERS[name].forward).parameters)[1:]
    assert shown == (["input"] if sequential is None else list(inspect.signature(sequential.forward).parameters)[1:])


def grid(*shape: int) -> gridwise.CartesianPartition:
    return gridwise.world().create_cartesian_topology_partition(shape)


@workers(1, 2)
@pytest.mark.parametrize("how", ["called", "by its name", "after a hook"])
def test_arguments_given_by_name_are_planned_for(how: str) -> None:
    size = gridwise.world().size
    x = torch.randn(2, 3, 4 * size, 5, generator=torch.Generator().manual_seed(0))
    made = [
        (gridwise.nn.DistributedConvTranspose2d(grid(1, 1, size, 1), 3, 2, 3, 2, 1), torch.nn.ConvTranspose2d(3, 2, 3, 2, 1)),
        (gridwise.nn.DistributedLinear(grid(size, 1), 5, 4), torch.nn.Linear(5, 4)),
        (gridwise.nn.DistributedMaxUnpool1d(grid(1, 1, size), 2), torch.nn.MaxUnpool1d(2)),
        (gridwise.nn.DistributedMSELoss(grid(size, 1)), torch.nn.MSELoss()),
    ]  # fmt: skip
    values, indices = torch.nn.functional.max_pool1d(x.flatten(2), 2, return_indices=True)
    given = [
        [{"input": x}, {"input": x, "output_size": [8 * size, 10]}, {"input": x}],
        [{"input": x[0, 0]}, {"input": x[0, 0, : 2 * size]}],
        [{"input": values, "indices": indices}, {"indices": indices, "input": values, "output_size": [20 * size]}],
        [{"target": x[0, 0], "input": x[0, 1]}, {"input": x[1, 0], "target": x[1, 0]}],
    ]
    for (layer, sequential), calls in zip(made, given, strict=True):
        if how == "after a hook":
            layer.register_forward_pre_hook(lambda module, args: None)
        layer.load_state_dict(sequential.state_dict())
        for arguments in calls:
            expected = sequential(**arguments)
            P = layer.P_x
            blocks = {
                name: value[gridwise.local_slice(P, value.shape)] if isinstance(value, torch.Tensor) else value
                for name, value in arguments.items()
            }
            found = (layer.forward if how == "by its name" else layer)(**blocks)
            own = expected[gridwise.local_slice(P, expected.shape)] if expected.dim() else expected
            torch.testing.assert_close(found, own)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            layer(**blocks, foo=1)
        with pytest.raises(TypeError, match="missing a required argument"):
            layer(**{name: value for name, value in blocks.items() if name != "input"}, output=1)


@workers(1)
def test_a_layer_of_a_user_gets_what_it_is_called_with() -> None:
    class Mine(gridwise.nn.Module):
        seen: tuple = ()

        def _distdl_module_setup(self, input: tuple) -> None:
            self.seen = input

        def forward(self, x: torch.Tensor, scale: float = 2.0, *, shift: float = 0.0) -> torch.Tensor:
            return scale * x + shift

    layer, x = Mine(), torch.ones(2)
    assert layer(shift=1.0, x=x).tolist() == [3.0, 3.0]
    assert layer.seen == (x, 2.0)
    assert layer(x, scale=3.0).tolist() == [3.0, 3.0]
