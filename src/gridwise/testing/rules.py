"""Does a user's rule run an operator on blocks as torch runs it on the whole tensor?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..grid import Grid, Layout
from ..models import distribute
from ..partition import CartesianPartition, world
from .sequential import check_equal_to_sequential


def check_rule(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    grids: Sequence[Sequence[int]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compare `function`, which calls an operator that has a rule, on blocks of `x` with itself on the whole.

    Every worker of the world calls this with the same `x`. Output and gradients are compared on each grid, for balanced
    blocks and for uneven ones, the first of them empty. Nothing may be gathered: a rule that raises `NoRule` fails here.

    Parameters
    ----------
    function : takes one tensor and returns one; of a module, the gradients of its parameters are compared too
    x : the global input, in float64 if gradients are to be compared closely
    grids : shapes of grids of all workers, with an axis for each dim of `x`; default: each dim cut in turn
    rtol, atol : tolerances, as in `torch.testing.assert_close`

    Raises
    ------
    CheckFailed : on all workers, naming what differs
    UnsupportedError : on all workers, where a tensor would be gathered

    Examples
    --------
    >>> gridwise.testing.check_rule(torch.sin, torch.ones(2, 3))
    """
    size = world().size
    shapes = grids or [[size if d == e else 1 for e in range(x.dim())] for d in range(x.dim())]
    for shape in shapes:
        P_x = world().create_cartesian_topology_partition(shape)
        for layout in (Layout.balanced(P_x.geometry, x.shape), _uneven(P_x.geometry, tuple(x.shape))):
            whole = function if isinstance(function, torch.nn.Module) else _Function(function)
            model = distribute(whole, P_x, gather="refuse")
            P_y = _output_partition(model, x, layout)
            check_equal_to_sequential(model, function, x, P_x, P_y, layout, rtol, atol)


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _uneven(grid: Grid, shape: tuple[int, ...]) -> Layout:
    """A layout whose first block along each cut dim is empty, and whose last one has the rest."""
    cuts = []
    for n, p in zip(shape, grid.shape, strict=True):
        inner = [min(i, n) for i in range(p)]
        cuts.append((*inner, n) if p == 1 else (0, *(max(0, i - 1) for i in inner[1:]), n))
    return Layout(grid, tuple(cuts))


def _output_partition(model: Any, x: Tensor, layout: Layout) -> CartesianPartition:
    with torch.no_grad():
        model(x[layout.block(world().transport.rank).slices].clone())
    P_y: CartesianPartition = model.P_y
    return P_y
