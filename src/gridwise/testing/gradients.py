"""Are gradients, and gradients of gradients, right? Directional finite differences over the whole grid.

    (f(x + e v) - f(x - e v)) / 2e   =   <grad f(x), v>,       f(x) = <layer(x), c>

with random v and c on every worker, inner products summed over the grid, in float64. Every worker makes the same number
of calls, which torch's own gradcheck does not (it perturbs one element at a time, and hangs on uneven blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .inner import CheckFailed, inner, random_like

Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def check_gradients(
    layer: Callable[..., Tensor],
    *inputs: Tensor,
    step: float = 1e-5,
    tolerance: float = 1e-6,
    directions: int = 2,
    double: bool = True,
    seed: int = 0,
) -> float:
    """Compare gradients, and with `double` also their gradients, with finite differences; return the worst error.

    Every worker of the world calls this with its local float64 `inputs`, the point to check at (zero-volume tensors where
    it has no part). Raises `CheckFailed` on all workers if a difference is larger than `tolerance`.

    Parameters
    ----------
    layer : a differentiable function of tensors
    *inputs : this worker's blocks, in float64
    step, tolerance : of the finite differences
    directions : how many random directions
    double : whether gradients of gradients are compared too
    seed : of the directions

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> layer = gridwise.nn.AllSumReduce(P_x, axes_reduce=(0,))
    >>> gridwise.testing.check_gradients(lambda x: layer(x) ** 2, torch.ones(3, dtype=torch.float64)) < 1e-6
    True
    """

    def forward(xs: Sequence[Tensor]) -> Sequence[Tensor]:
        return [layer(*xs)]

    def gradient(xs: Sequence[Tensor]) -> Sequence[Tensor]:
        *inputs, cotangent = xs
        return _gradients(forward(inputs), [cotangent], inputs, create_graph=True)

    points = [x.detach().clone() for x in inputs]
    worst = _check(forward, points, "gradient", step, tolerance, directions, seed)
    if double:
        cotangent = random_like(forward(points)[0].detach(), "cotangent", seed)
        worst = max(
            worst, _check(gradient, [*points, cotangent], "gradient of the gradient", step, tolerance, directions, seed)
        )
    return worst


def _check(
    function: Function, points: list[Tensor], what: str, step: float, tolerance: float, directions: int, seed: int
) -> float:
    leaves = [x.detach().requires_grad_() for x in points]
    outputs = function(leaves)
    weights = [random_like(y, f"{what} c{i}", seed) for i, y in enumerate(outputs)]
    slopes = _gradients(outputs, weights, leaves, create_graph=False)
    worst = 0.0
    for k in range(directions):
        vs = [random_like(x, f"{what} v{i} {k}", seed) for i, x in enumerate(points)]
        predicted = inner(slopes, vs)
        ahead, behind = (
            inner(function([(x + sign * step * v).requires_grad_() for x, v in zip(points, vs, strict=True)]), weights)
            for sign in (1, -1)
        )
        measured = (ahead - behind) / (2 * step)
        scale = (inner(slopes, slopes) * inner(vs, vs)) ** 0.5 + abs(measured) + 1e-300
        difference = abs(predicted - measured) / scale
        worst = max(worst, difference)
        if not difference <= tolerance:
            raise CheckFailed(
                f"the {what} is wrong: along direction {k} it predicts a slope of {predicted!r}, "
                f"finite differences measure {measured!r} (relative difference {difference:.2e})."
            )
    return worst


def _gradients(
    outputs: Sequence[Tensor], weights: Sequence[Tensor], inputs: Sequence[Tensor], create_graph: bool
) -> Sequence[Tensor]:
    found = torch.autograd.grad(outputs, inputs, weights, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
