"""Every kind of operator on blocks equals itself on the whole tensor: values, gradients, buffers; uneven and empty blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.grid import Grid, Layout
from gridwise.testing import workers

from .equality import compare
from .operators import CASES

GRIDS = [(1, 1, 2, 2), (4, 1, 1, 1), (2, 2, 1, 1), (1, 1, 1, 4)]


class Of(nn.Module):
    """A function of an input and of three parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(5)
        self.w = nn.Parameter(torch.randn(6, 4, 3, 3, dtype=torch.float64, generator=generator) / 6)
        self.b = nn.Parameter(torch.randn(6, dtype=torch.float64, generator=generator))
        self.c = nn.Parameter(torch.randn(4, dtype=torch.float64, generator=generator))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("var", torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def differences(
    function: Callable[..., Any], shape: tuple[int, ...], grid: tuple[int, ...], **rest: Any
) -> dict[str, float]:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    errors, _ = compare(Of(function), [x], grid, **rest)
    return {name: error for name, error in errors.items() if not error < 1e-10}


@workers(4, transports=["mpi"])
@pytest.mark.parametrize("kind", sorted(CASES))
def test_operators_equal_the_sequential_ones(kind: str) -> None:
    wrong = {}
    for i, function in enumerate(CASES[kind]):
        for grid in GRIDS:
            for shape in ((2, 4, 6, 8), (3, 4, 5, 3)):
                found = differences(function, shape, grid)
                if found:
                    wrong[kind, i, grid, shape] = found
    assert not wrong


@workers(4, transports=["gloo"])
def test_one_of_each_over_gloo() -> None:
    for functions in CASES.values():
        assert not differences(functions[0], (2, 4, 6, 5), (1, 1, 2, 2))


@workers(3, transports=["mpi"])
def test_blocks_of_the_users_own_cuts() -> None:
    grid = Grid((0, 1, 2), (1, 1, 3, 1))
    layout = Layout(grid, ((0, 2), (0, 4), (0, 0, 5, 7), (0, 6)))
    for kind in ("windows", "norms", "views", "reductions"):
        for function in CASES[kind]:
            assert not differences(function, (2, 4, 7, 6), (1, 1, 3, 1), layouts=[layout])


@workers(4, transports=["mpi"])
def test_a_write_through_a_view_that_would_move_is_refused() -> None:
    def turned(m: Any, x: Tensor) -> Tensor:
        y = x * 1
        y.view(-1).add_(1)
        return y

    with pytest.raises(UnsupportedError, match="view"):
        differences(turned, (2, 4, 6, 8), (1, 1, 2, 2))


@workers(4, transports=["mpi"])
def test_what_has_no_rule_is_gathered_and_reported_or_refused() -> None:
    def decomposed(m: Any, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x.relu())

    x = torch.randn(2, 4, 6, 8, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(3))
    errors, program = compare(Of(decomposed), [x], (1, 1, 2, 2))
    assert max(errors.values()) < 1e-10
    (gather,) = program.report.gathers
    assert (gather.bytes, gather.has_rule) == (x.nbytes, False)
    assert "svd" in str(program.report)
    assert "operators.py" in gather.line or "test_rules.py" in gather.line
    with pytest.raises(UnsupportedError, match="svd"):
        compare(Of(decomposed), [x], (1, 1, 2, 2), gather="refuse")


@workers(2, transports=["mpi"])
def test_a_rule_of_ones_own() -> None:
    from gridwise.models.rules import pointwise
    from gridwise.models.rules.table import RULES

    assert "aten::erfinv" not in RULES
    gridwise.register_rule(torch.ops.aten.special_erfcx, pointwise)
    assert RULES["aten::special_erfcx"] is pointwise


@workers(4, transports=["mpi"])
def test_replicated_inputs_and_outputs_count_once() -> None:
    """A number that every worker holds goes in and comes out: gradients are those of one backward."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
            return (x * scale).mean(), scale.exp()

    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(3))
    errors, program = compare(Scaled(), [x, torch.tensor(0.3, dtype=torch.float64, requires_grad=True)], (1, 1, 2, 2))
    assert max(errors.values()) < 1e-12
    assert not program.report.gathers


@workers(4, transports=["mpi"])
def test_gradients_of_gradients() -> None:
    """A penalty on the gradient of the input: the adjoints of movements are differentiated again."""
    from gridwise.models.placing import place

    from .equality import recorded

    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(1), nn.Linear(3 * 4 * 6, 3)).double()
    P = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 2))
    layout = Layout.balanced(P.grid, (2, 2, 4, 6))
    whole = torch.randn(2, 2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    program = place(recorded(model, [whole]), [layout], P)
    held = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}

    def penalty(y: Tensor, x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return g.square().sum()

    penalty(model(whole), whole).backward()
    mine = layout.block(P.transport.rank).slices
    x = whole.detach()[mine].clone().requires_grad_()
    (y,) = program(held, {}, [x])
    penalty(y, x).backward()
    assert x.grad is not None
    assert whole.grad is not None
    torch.testing.assert_close(x.grad, whole.grad[mine])
    for name, value in model.named_parameters():
        torch.testing.assert_close(held[name].grad, value.grad)


def test_every_operator_of_the_list_has_a_rule() -> None:
    from gridwise.models.rules import rule_for
    from gridwise.models.rules.pointwise import is_pointwise

    from .operators import LISTED

    missing = []
    for name in LISTED:
        packet, _, overload = name.rpartition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        plain = getattr(torch.ops.aten, packet.removesuffix("_"), None) if packet.endswith("_") else None
        overloads = [op, *([getattr(plain, o) for o in plain.overloads()] if plain else [])]
        if not any(rule_for(each) or is_pointwise(each) for each in overloads):
            missing.append(name)
    assert not missing


@workers(2, transports=["mpi"])
def test_functional_losses_are_one_number() -> None:
    def loss(m: Any, x: Tensor) -> Tensor:
        target = torch.arange(2 * 6 * 8).reshape(2, 6, 8) % 4
        return F.cross_entropy(x, target) + F.mse_loss(x, x.detach() * 0.5) + F.cross_entropy(x, target, m.c.exp())

    assert not differences(loss, (2, 4, 6, 8), (1, 1, 2, 1))
    assert not differences(loss, (2, 4, 6, 8), (2, 1, 1, 1))
