"""Does a distributed layer equal the sequential one: output, gradient of the input, gradients of the parameters?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..comm.agreement import largest
from ..grid import Layout, cuts_from_extents
from ..partition import CartesianPartition, local_slice, world, zero_volume_tensor
from .inner import CheckFailed


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
    are modules; a block of one is compared with its part of the sequential gradient. Gradients from before are dropped.
    Raises `CheckFailed` on all workers, naming what differs.

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
    _drop_gradients(sequential)
    y_whole = sequential(x_whole)
    generator = torch.Generator().manual_seed(1)
    dy = torch.randn(y_whole.shape, dtype=y_whole.dtype, generator=generator, device="cpu").to(y_whole.device)
    y_whole.backward(dy)
    expected = _gradients(sequential)
    _drop_gradients(layer)
    y_local = layer(x_local)
    place, problems = _place_of(y_local, P_y, tuple(y_whole.shape))
    y_local.backward(torch.zeros_like(y_local) if place is None else dy[place])
    assert x_local.grad is not None
    if place is not None:
        problems += _difference("the output", y_local.detach(), y_whole.detach()[place], rtol, atol)
    if P_x.active:
        assert x_whole.grad is not None
        problems += _difference("the input's gradient", x_local.grad, x_whole.grad[block], rtol, atol)
    problems += _parameter_differences(layer, expected, rtol, atol)
    _raise_everywhere(problems)


def _place_of(
    y_local: Tensor, P_y: CartesianPartition, shape: tuple[int, ...]
) -> tuple[tuple[slice, ...] | None, list[str]]:
    """Where this worker's block of the output lies, with blocks as the layer chose them; None if it has none.

    The blocks of all workers must make up the output exactly, so that the comparisons cover all of it.
    """
    if not P_y.active:
        return None, []
    extents = P_y.allgather_data(y_local.shape)
    assert extents is not None
    if extents.shape[1] == len(shape) == P_y.dim:
        blocks = extents.reshape(*P_y.shape, -1)
        lines = [np.moveaxis(blocks[..., d], d, 0).reshape(p, -1) for d, p in enumerate(P_y.shape)]
        layout = Layout(P_y.geometry, tuple(cuts_from_extents(line[:, 0].tolist()) for line in lines))
        if layout.global_shape == shape and all((line == line[:, :1]).all() for line in lines):
            return layout.block(P_y.transport.rank).slices, []
    reports = ", ".join(str(tuple(block)) for block in extents.tolist())
    return None, [f"the output of shape {shape} is not made of blocks of shapes {reports}"]


def _drop_gradients(layer: object) -> None:
    if isinstance(layer, torch.nn.Module):
        layer.zero_grad()


def _gradients(layer: object) -> dict[str, Tensor | None] | None:
    """By the names of its parameters; None if it is no module."""
    return {name: p.grad for name, p in layer.named_parameters()} if isinstance(layer, torch.nn.Module) else None


def _parameter_differences(
    layer: object, whole: dict[str, Tensor | None] | None, rtol: float | None, atol: float | None
) -> list[str]:
    """Compare the layer's gradients with the sequential ones, `whole`; without one, a gradient is 0."""
    if whole is None or not isinstance(layer, torch.nn.Module):
        return []
    mine = dict(layer.named_parameters())
    problems = [f"parameter {name!r} is missing" for name in whole if name not in mine]
    for name, local in mine.items():
        if name not in whole:
            problems.append(f"parameter {name!r} is not one of the sequential layer")
            continue
        expected, block = whole[name], getattr(local, "block", None)
        if expected is None:
            expected = torch.zeros_like(local)
        elif block is not None:
            expected = expected[block.slices]
        if local.numel():
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
    if any(largest(transport, transport.everyone, "a comparison", len(problems))):
        reports = transport.gather_bytes("\n".join(problems).encode(), transport.everyone, "a comparison")
        lines = [f"  worker {rank}: {text.decode()}" for rank, text in enumerate(reports) if text]
        raise CheckFailed("the layer does not equal the sequential one.\n" + "\n".join(lines))
