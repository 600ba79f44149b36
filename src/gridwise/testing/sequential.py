"""Does a distributed layer equal the sequential one: output, gradient of the input, gradients of the parameters?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..grid import Layout
from ..nn.functional import gather
from ..partition import CartesianPartition, Partition, local_slice, world, zero_volume_tensor
from .inner import CheckFailed

ROOT = 0


def check_equal_to_sequential(
    layer: Callable[[Tensor], Tensor],
    sequential: Callable[[Tensor], Tensor],
    x: Tensor,
    P_x: CartesianPartition,
    P_y: CartesianPartition | None = None,
    layout: Layout | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compare `layer` on blocks of `x` with `sequential` on the whole of it, forward and backward.

    Every worker of the world calls this with the same global `x`. Parameters of the same name are compared too, when both
    are modules; a split one is compared with its part of the sequential gradient. Raises `CheckFailed` on all workers,
    naming what differs.

    Parameters
    ----------
    layer, sequential : the layer on the grid, and what it should equal
    x : the global input
    P_x, P_y : partitions of input and output (default: the same)
    layout : the input's blocks, if they are not balanced
    rtol, atol : tolerances, as in `torch.testing.assert_close`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.testing.check_equal_to_sequential(gridwise.nn.AllGather(P_x, (0,)), torch.clone, torch.ones(2, 2), P_x)
    """
    P_y = P_y or P_x
    block = layout.block(world().transport.rank).slices if layout and P_x.active else local_slice(P_x, x.shape)
    x_local = x[block].clone() if P_x.active else zero_volume_tensor(dtype=x.dtype)
    x_local.requires_grad_()
    x_whole = x.clone().requires_grad_()
    y_whole = sequential(x_whole)
    generator = torch.Generator().manual_seed(1)
    dy = torch.randn(y_whole.shape, dtype=y_whole.dtype, generator=generator, device="cpu").to(y_whole.device)
    y_whole.backward(dy)
    y_local = layer(x_local)
    y = gather(y_local.detach(), P_y, ROOT)
    shares = _share_of(dy, y_local, P_y)
    y_local.backward(shares)
    assert x_local.grad is not None
    dx = gather(x_local.grad, P_x, ROOT)
    problems = []
    if world().transport.rank == ROOT:
        problems += _difference("the output", y, y_whole.detach(), rtol, atol)
        assert x_whole.grad is not None
        problems += _difference("the input's gradient", dx, x_whole.grad, rtol, atol)
    problems += _parameter_differences(layer, sequential, rtol, atol)
    _raise_everywhere(problems)


def _share_of(dy: Tensor, y_local: Tensor, P_y: Partition) -> Tensor:
    """This worker's part of the cotangent, for blocks as the layer has chosen them."""
    if not P_y.active:
        return torch.zeros_like(y_local)
    extents = P_y.allgather_data(y_local.shape)
    assert extents is not None
    start = []
    index = P_y.index
    assert index is not None
    for d in range(P_y.dim):
        before = [(*index[:d], i, *index[d + 1 :]) for i in range(index[d])]
        start.append(sum(int(extents[P_y.grid.place_of(P_y.grid.rank_at(i))][d]) for i in before))
    return dy[tuple(slice(a, a + n) for a, n in zip(start, y_local.shape, strict=True))]


def _parameter_differences(layer: Any, sequential: Any, rtol: float | None, atol: float | None) -> list[str]:
    if not (isinstance(layer, torch.nn.Module) and isinstance(sequential, torch.nn.Module)):
        return []
    problems = []
    mine = dict(layer.named_parameters())
    for name, parameter in sequential.named_parameters():
        if name not in mine:
            problems.append(f"parameter {name!r} is missing")
            continue
        local, expected = mine[name], parameter.grad
        block = getattr(local, "block", None)
        if block is not None and expected is not None:
            expected = expected[block.slices]
        if local.numel() and expected is not None:
            grad = torch.zeros_like(local) if local.grad is None else local.grad
            problems += _difference(f"the gradient of {name!r}", grad, expected, rtol, atol)
    return problems


def _difference(what: str, actual: Tensor, expected: Tensor, rtol: float | None, atol: float | None) -> list[str]:
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    except AssertionError as error:
        return [f"{what} differs: {' '.join(str(error).split())}"]
    return []


def _raise_everywhere(problems: list[str]) -> None:
    transport = world().transport
    told = transport.gather_bytes("\n".join(problems).encode(), transport.everyone, "a comparison")
    lines = [f"  worker {rank}: {text.decode()}" for rank, text in enumerate(told) if text]
    if lines:
        raise CheckFailed("the layer does not equal the sequential one.\n" + "\n".join(lines))
