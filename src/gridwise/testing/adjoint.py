"""Is the backward pass of a linear layer exactly its adjoint?

    <A x, y>  =  <x, A' y>        for random x and y, summed over all workers

In float64 the two sides agree to rounding, or there is a bug: a halo value dropped, a copy counted twice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .inner import CheckFailed, inner, random_like


def check_adjoint(layer: Callable[..., Tensor], *inputs: Tensor, tolerance: float = 1e-12, seed: int = 0) -> float:
    """Compare ``<A x, y>`` with ``<x, A' y>`` over all workers, and return their relative difference.

    Every worker of the world calls this with its local `inputs` (zero-volume tensors where it has no part); only their
    shapes matter. Raises `CheckFailed` on all workers if the difference is larger than `tolerance`.

    Parameters
    ----------
    layer : a linear function of tensors
    *inputs : tensors of the shapes of this worker's blocks
    tolerance : the largest relative difference allowed
    seed : of the random x and y

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> layer = gridwise.nn.HaloExchange(P_x, [(1, 1), (0, 0)])
    >>> gridwise.testing.check_adjoint(layer, torch.zeros(4, 3)) < 1e-12
    True
    """
    doubles = [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in inputs]
    xs = [random_like(x, f"x{i}", seed) for i, x in enumerate(doubles)]
    for x in xs:
        x.requires_grad_()
    y = layer(*xs)
    dy = random_like(y, "dy", seed)
    dxs = torch.autograd.grad(y, xs, dy, allow_unused=True)
    there = inner([y], [dy])
    back = inner(xs, [torch.zeros_like(x) if dx is None else dx for x, dx in zip(xs, dxs, strict=True)])
    scale = max(inner([y], [y]) * inner([dy], [dy]), 1e-300) ** 0.5
    difference = abs(there - back) / scale
    if not difference <= tolerance:
        raise CheckFailed(
            f"the backward pass is not the adjoint: <A x, y> = {there!r}, <x, A' y> = {back!r}, "
            f"a relative difference of {difference:.2e} against {tolerance:.0e} allowed.\n"
            "  fix: check that the layer is linear, and that each element sent forward is added back exactly once."
        )
    return difference
