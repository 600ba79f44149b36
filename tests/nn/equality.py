"""One layer, one grid, one input: is the distributed layer equal to torch's, or refused wherever torch refuses?

A `Case` says what to build. `check` runs it on the workers of the calling test and compares, on each worker, its blocks
of the output, of the input's gradient and of the parameters' gradients with the sequential ones in float64.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import gridwise
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.grid import Layout
from gridwise.grid.cuts import cuts_from_extents

NOT_OFFERED = ("a window without any input", "negative circular padding", "Output size is too small")
"""What is refused though torch takes it: it returns indices outside the tensor, rolls what it has cropped, or, on CUDA only,
makes nothing."""


@dataclass(frozen=True)
class Case:
    """`torch.nn.<layer>(*args, **kwargs)` on an input of `shape`, against its namesake on the grid `P_x`."""

    layer: str
    P_x: tuple[int, ...]
    shape: tuple[int, ...]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    P_w: tuple[int, ...] | None = None
    extents: tuple[tuple[int, ...] | None, ...] | None = None
    """Per dim, the extents of the input's blocks; None for balanced ones."""
    channels_last: bool = False
    call: tuple[Any, ...] = ()
    """What the layer is called with after its input."""

    @property
    def workers(self) -> int:
        return max(math.prod(self.P_x), math.prod(self.P_w or (1,)))

    def __str__(self) -> str:
        words = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())]
        grids = f"on {self.P_x}" + (f" by {self.P_w}" if self.P_w else "")
        uneven = f" cut {self.extents}" if self.extents else ""
        called = f" called with {self.call}" if self.call else ""
        return f"{self.layer}({', '.join(words)}) of {self.shape} {grids}{uneven}{called}"


def check(case: Case, seed: int = 0) -> str:
    """'equal' or 'refused'; raises AssertionError otherwise."""
    world = gridwise.world()
    P_x = _grid(case.P_x)
    options = dict(case.kwargs)
    P_y = P_x
    if case.P_w is not None:
        P_y = _grid((1, case.P_w[0], *case.P_w[2:]))
        options |= {"P_y": P_y, "P_w": _grid(case.P_w)}
    x = torch.randn(case.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = _sequential(case, x, seed)
    torch.manual_seed(seed)
    mine, x_local = _block_of(case, P_x, x)
    messages = _count_messages(world.transport)
    try:
        layer = _make(gridwise.nn, f"Distributed{case.layer}", (P_x, *case.args), options)
        messages.clear()
        y = layer(x_local, *case.call)
    except (PartitionError, UnsupportedError) as error:
        return _refused(case, str(error), expected is None, bool(messages))
    finally:
        messages.stop()
    if expected is None:
        assert layer._is_outside, f"torch refuses this, we do not: {case}"
        return "refused"  # by the others; this worker has no part in it
    y_seq, x_seq, sequential = expected
    outs, outs_seq = _tuple(y), _tuple(y_seq)
    assert len(outs) == len(outs_seq), case
    dy = torch.randn(outs_seq[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    outs_seq[0].backward(dy)
    if not dy.numel():
        x_seq.grad.zero_()  # torch leaves it uninitialised for some layers
    wrong: list[str] = []  # raised at the end only, so that all workers reach every collective
    if P_y.active:
        lacking = P_y.dim - dy.dim()
        target = _output_layout(
            case, _source_of(case, P_x), Layout.balanced(P_y.geometry, (1,) * lacking + tuple(dy.shape))
        )
        block = target.block(world.rank).slices[lacking:]
        for out, out_seq in zip(outs, outs_seq, strict=True):
            wrong += _differ(out, out_seq[block], "output")
        outs[0].backward(dy[block] if not wrong else torch.zeros_like(outs[0]))
    else:
        wrong += ["an output outside the grid"] if outs[0].numel() else []
        outs[0].sum().backward()
    if mine is not None:
        wrong += _differ(x_local.grad, x_seq.grad[mine], "input gradient")
    for name, parameter in sequential.named_parameters():
        block = layer._shardings[name].block(world.rank)
        local = getattr(layer, name)
        if block is not None:
            wrong += _differ(local, parameter[block.slices], f"value of {name}")
            wrong += _differ(local.grad, parameter.grad[block.slices], f"gradient of {name}")
        elif local.numel():
            wrong.append(f"a part of {name} where there is none")
    for name, buffer in sequential.named_buffers():
        block = layer._shardings[name].block(world.rank)
        if block is not None:
            wrong += _differ(getattr(layer, name), buffer[block.slices], f"value of {name}")
    assert not wrong, f"{case}: {'; '.join(wrong)}"
    return "equal"


def check_second_order(case: Case, seed: int = 0) -> None:
    """The gradients of |dv/dx|^2, where v = sum of y^2, are torch's: every step has an adjoint that has one again."""
    world, P_x = gridwise.world(), _grid(case.P_x)
    x = torch.randn(case.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = _sequential(case, x, seed)
    assert expected is not None, case
    y_seq, x_seq, sequential = expected
    torch.manual_seed(seed)
    mine, x_local = _block_of(case, P_x, x)
    layer = _make(gridwise.nn, f"Distributed{case.layer}", (P_x, *case.args), case.kwargs)
    for y, inputs in ((_tuple(y_seq)[0], x_seq), (_tuple(layer(x_local))[0], x_local)):
        (gradient,) = torch.autograd.grad((y**2).sum(), inputs, create_graph=True)
        (gradient**2).sum().backward()
    wrong = _differ(x_local.grad, x_seq.grad[mine], "second gradient of the input") if mine is not None else []
    for name, parameter in sequential.named_parameters():
        block, local = layer._shardings[name].block(world.rank), getattr(layer, name)
        if block is not None and parameter.grad is not None:
            wrong += _differ(local.grad, parameter.grad[block.slices], f"second gradient of {name}")
    assert not wrong, f"{case}: {'; '.join(wrong)}"


def _block_of(case: Case, P_x: gridwise.CartesianPartition, x: Tensor) -> tuple[tuple[slice, ...] | None, Tensor]:
    """Where this worker's block of `x` lies (None without one), and the block, ready for gradients."""
    rank, lacking = gridwise.world().rank, P_x.dim - x.dim()
    mine = _source_of(case, P_x).block(rank).slices[max(lacking, 0) :] if P_x.active else None
    x_local = torch.empty(0, dtype=torch.float64) if mine is None else x[mine].clone()
    if case.channels_last and mine is not None:
        x_local = x_local.to(memory_format=torch.channels_last)
    return mine, x_local.requires_grad_()


def _source_of(case: Case, P_x: gridwise.CartesianPartition) -> Layout:
    """The blocks of the input, with a batch dim where the grid has one and the input has not."""
    lacking = P_x.dim - len(case.shape)
    balanced = Layout.balanced(P_x.geometry, (1,) * lacking + case.shape)
    if not case.extents:
        return balanced
    given = (None,) * lacking + case.extents
    cuts = [line if e is None else cuts_from_extents(e) for line, e in zip(balanced.cuts, given, strict=True)]
    return Layout(P_x.geometry, tuple(cuts))


def _output_layout(case: Case, source: Layout, balanced: Layout) -> Layout:
    """Layers that do not move along a dim leave it in the input's blocks."""
    if case.layer.startswith(("InstanceNorm", "BatchNorm", "GroupNorm", "PReLU")):
        return source
    return Layout(source.grid, source.cuts[:2] + balanced.cuts[2:]) if case.layer == "Upsample" else balanced


def _refused(case: Case, words: str, by_torch: bool, sent: bool) -> str:
    known = any(reason in words for reason in NOT_OFFERED)
    assert by_torch or known, f"torch takes this, we do not: {case}\n{words}"
    assert not sent, f"refused after sending: {case}"
    return "refused"


def check_all(cases: list[Case], workers: int) -> list[str]:
    """Check those that just fit on so many workers; a difference is raised at the end, so that all stay in step."""
    outcomes, wrong = [], []
    for seed, case in enumerate(cases):
        if case.workers <= workers:
            try:
                outcomes.append(check(case, seed))
            except AssertionError as error:
                wrong.append(f"{seed}: {error}")
    assert not wrong, "\n".join(wrong)
    return outcomes


def _sequential(case: Case, x: Tensor, seed: int) -> tuple[Any, Tensor, torch.nn.Module] | None:
    torch.manual_seed(seed)
    x_seq = x.clone().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch pads 'same' with a copy, and says so
            layer = _make(torch.nn, case.layer, case.args, case.kwargs)
            return layer(x_seq, *case.call), x_seq, layer
    except (RuntimeError, ValueError, TypeError):
        return None


def _make(place: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.nn.Module:
    dtype = {"dtype": torch.float64} if any(kind in name for kind in ("Conv", "Norm", "PReLU")) else {}
    return getattr(place, name)(*args, **kwargs, **dtype)


def _grid(shape: tuple[int, ...]) -> gridwise.CartesianPartition:
    world = gridwise.world()
    return world.create_partition_inclusive(range(math.prod(shape))).create_cartesian_topology_partition(shape)


def _differ(actual: Tensor | None, expected: Tensor, what: str) -> list[str]:
    if actual is None:
        return [f"no {what}"]
    try:
        torch.testing.assert_close(actual.detach().as_subclass(Tensor), expected.detach(), rtol=1e-9, atol=1e-9)
    except AssertionError as error:
        return [f"{what}: {' '.join(str(error).split())}"]
    return []


def _tuple(y: Any) -> tuple[Tensor, ...]:
    return y if isinstance(y, tuple) else (y,)


class _count_messages(list):
    """Every movement that the transport makes while this watches, to see that a refusal comes before any."""

    def __init__(self, transport: Any) -> None:
        super().__init__()
        self.transport, self.move = transport, transport.move
        transport.move = self._counted

    def _counted(self, *args: Any) -> Any:
        self.append(args)
        return self.move(*args)

    def stop(self) -> None:
        del self.transport.move
