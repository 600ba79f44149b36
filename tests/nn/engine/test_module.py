"""The base module's contract: when set-up and teardown run, and what a subclass may override."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.nn import Module
from gridwise.testing import workers


def test_the_base_of_layers_has_little_state() -> None:
    """Who the layer is, its plans, and flags: what a call is about belongs in its plan."""
    own = {name for name in vars(Module()) if name.startswith("_")} - set(vars(torch.nn.Module()))
    assert len(own) <= 7, sorted(own)


class Recording(Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def _distdl_module_setup(self, input: tuple) -> None:
        self.calls.append(f"setup {tuple(input[0].shape)}")

    def _distdl_module_teardown(self, input: tuple) -> None:
        self.calls.append("teardown")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_set_up_runs_once_and_again_only_when_the_structure_changes():
    layer = Recording()
    for _ in range(100):
        layer(torch.ones(2, 3))
    assert layer.calls == ["setup (2, 3)"]
    layer(torch.ones(4, 3))
    assert layer.calls[1:] == ["teardown", "setup (4, 3)"]


@pytest.mark.parametrize(
    "changed",
    [torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, device="meta")],
    ids=["dtype", "requires_grad", "device"],
)
def test_dtype_requires_grad_and_device_are_part_of_the_structure(changed):
    layer = Recording()
    layer(torch.ones(2, 3))
    layer(changed)
    assert layer.calls[1:] == ["teardown", "setup (2, 3)"]


def test_a_layer_may_decide_for_itself_what_a_change_is():
    class OnlyBatch(Recording):
        def _distdl_input_changed(self, input: tuple) -> bool:
            new, self.batch = input[0].shape[0], getattr(self, "batch", None)
            changed, self.batch = new != self.batch, new
            return changed

    layer = OnlyBatch()
    layer(torch.ones(2, 3))
    layer.batch = 2
    layer(torch.ones(2, 5))
    assert layer.calls == ["setup (2, 3)"]


def test_a_set_up_that_fails_is_tried_again():
    class Fragile(Recording):
        def _distdl_module_setup(self, input: tuple) -> None:
            super()._distdl_module_setup(input)
            if len(self.calls) == 1:
                raise RuntimeError("not yet")

    layer = Fragile()
    with pytest.raises(RuntimeError, match="not yet"):
        layer(torch.ones(1))
    layer(torch.ones(1))
    assert layer.calls == ["setup (1,)", "setup (1,)"]


@workers(2, 3)
def test_a_users_own_layer_is_set_up_on_all_workers_when_one_input_changes():
    class Mine(Recording):
        def __init__(self, P_x: gridwise.Partition) -> None:
            super().__init__()
            self._takes_part(P_x)

    world = gridwise.world()
    layer = Mine(world)
    layer(torch.ones(2))
    layer(torch.ones(2 + (world.rank == 1)))
    assert len(layer.calls) == 3


def test_forward_may_be_called_by_its_name():
    class Twice(Recording):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    layer = Twice()
    assert layer.forward(torch.ones(2, 3)).shape == (2, 3)
    assert layer.forward(torch.ones(4, 3)).tolist() == [[4.0] * 3] * 4
    layer(torch.ones(4, 3))
    assert layer.calls == ["setup (2, 3)", "teardown", "setup (4, 3)"]


@workers(1, 2)
def test_a_layer_whose_forward_is_called_by_its_name_plans_for_what_it_gets() -> None:
    P = gridwise.world().create_cartesian_topology_partition((1, 1, gridwise.world().size))
    layer = gridwise.nn.DistributedUpsample(P, scale_factor=2)
    for rows in (4, 6):
        assert layer.forward(torch.ones(1, 1, rows)).shape == (1, 1, 2 * rows)
    with pytest.raises(ValueError, match="needs"):
        layer.forward("no tensor")
    assert layer(torch.ones(1, 1, 5)).shape == (1, 1, 10)
