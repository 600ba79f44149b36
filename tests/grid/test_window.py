"""Windows against the dense matrices of torch's own layers, and hull-then-pad against `F.pad` of the whole tensor."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor

from gridwise.errors import PartitionError
from gridwise.grid import Interval, hull_then_pad, transposed_need, window_need

from .strategies import cases, intervals

MODES = {"constant": "constant", "zeros": "constant", "reflect": "reflect", "replicate": "replicate"}


class Window(NamedTuple):
    kernel: int
    stride: int
    padding: int
    dilation: int


windows = st.builds(Window, st.integers(1, 4), st.integers(1, 4), st.integers(0, 4), st.integers(1, 3))


def hull_of(rows: Tensor) -> Interval | None:
    """From the first to the last of the rows that are set."""
    found = rows.nonzero().flatten().tolist()
    return (found[0], found[-1] + 1) if found else None


def convolve(x: Tensor, window: Window) -> Tensor:
    return F.conv1d(x, torch.ones(1, 1, window.kernel), stride=window.stride, dilation=window.dilation)


def convolve_transposed(x: Tensor, window: Window, extra: int) -> Tensor:
    kernel, stride, padding, dilation = window
    return F.conv_transpose1d(x, torch.ones(1, 1, kernel), None, stride, padding, extra, 1, dilation)


def fetched_and_padded(x: Tensor, need: Interval, mode: str) -> Tensor:
    """The rows `need` of a (1, 1, rows) tensor, made as a worker makes them."""
    plan = hull_then_pad(need, x.shape[-1], mode)
    rows = x[..., slice(*plan.hull)]
    if plan.before or plan.after:
        rows = F.pad(rows, (plan.before, plan.after), MODES[mode])
    return rows[..., slice(*plan.crop)]


@st.composite
def paddings(draw: DrawFn) -> tuple[str, int, int, int, Interval]:
    """A mode, an extent, the padding on both sides that torch allows there, and a need inside all that."""
    mode = draw(st.sampled_from(sorted(MODES)))
    extent = draw(st.integers(0 if MODES[mode] == "constant" else 1, 8))
    most = extent - 1 if mode == "reflect" else 9
    before, after = draw(st.integers(0, most)), draw(st.integers(0, most))
    return mode, extent, before, after, draw(intervals(-before, extent + after))


@cases(150, case=paddings())
def test_hull_then_pad_is_the_padding_of_the_whole_tensor(case: tuple[str, int, int, int, Interval]) -> None:
    mode, extent, before, after, (start, stop) = case
    x = torch.arange(1.0, extent + 1).reshape(1, 1, extent).requires_grad_()
    whole = F.pad(x, (before, after), MODES[mode])[..., start + before : stop + before]
    mine = fetched_and_padded(x, (start, stop), mode)
    assert torch.equal(mine, whole)
    y = torch.arange(1.0, stop - start + 1).reshape(1, 1, -1)
    assert torch.equal(*(torch.autograd.grad(rows, x, y)[0] for rows in (mine, whole)))


@cases(150, case=paddings())
def test_the_hull_holds_what_is_needed_and_the_padded_edges_only(case: tuple[str, int, int, int, Interval]) -> None:
    mode, extent, before, after, (start, stop) = case
    plan = hull_then_pad((start, stop), extent, mode)
    assert 0 <= plan.hull[0] <= plan.hull[1] <= extent
    rows = torch.arange(1.0, extent + 1).reshape(1, 1, extent)
    seen = F.pad(rows, (before, after), MODES[mode])[0, 0, start + before : stop + before].long()
    needed = torch.zeros(extent + 1)
    needed[seen] = 1  # row 0 stands for a constant
    needed = needed[1:]
    if MODES[mode] != "constant" and start < stop:
        needed[: start < 0] = 1
        needed[extent - (stop > extent) :] = 1
    assert (plan.hull if plan.hull[0] < plan.hull[1] else None) == hull_of(needed)


@pytest.mark.parametrize(("need", "extent"), [((-3, 1), 3), ((2, 6), 3), ((-1, 0), 0)])
def test_reflect_needs_more_rows_than_padding(need: Interval, extent: int) -> None:
    with pytest.raises(PartitionError, match=f"the tensor has {extent}"):
        hull_then_pad(need, extent, "reflect")


def test_replicate_needs_a_row() -> None:
    with pytest.raises(PartitionError, match="needs more than 0 rows in all, the tensor has 0"):
        hull_then_pad((-1, 1), 0, "replicate")


def test_circular_belongs_to_the_route() -> None:
    with pytest.raises(PartitionError, match="'circular'"):
        hull_then_pad((-1, 1), 4, "circular")


@cases(100, window=windows, extent=st.integers(1, 12), data=st.data())
def test_a_window_needs_the_hull_of_its_columns(window: Window, extent: int, data: st.DataObject) -> None:
    padded = extent + 2 * window.padding
    assume(padded > window.dilation * (window.kernel - 1))
    matrix = convolve(torch.eye(padded).unsqueeze(1), window).squeeze(1).T  # (outputs, padded inputs)
    first, last = data.draw(intervals(0, len(matrix)))
    start, stop = window_need((first, last), *window)
    hull = hull_of(matrix[first:last].sum(0))
    assert hull == ((start + window.padding, stop + window.padding) if start < stop else None)
    assert (start < stop) == (first < last)


@cases(100, window=windows, extent=st.integers(1, 12), mode=st.sampled_from(sorted(MODES)), data=st.data())
def test_a_convolution_of_the_need_is_a_block_of_the_whole(
    window: Window, extent: int, mode: str, data: st.DataObject
) -> None:
    assume(extent + 2 * window.padding > window.dilation * (window.kernel - 1))
    assume(mode != "reflect" or window.padding < extent)
    x = torch.arange(1.0, extent + 1).reshape(1, 1, extent)
    whole = convolve(F.pad(x, (window.padding,) * 2, MODES[mode]), window)
    first, last = data.draw(intervals(0, whole.shape[-1]).filter(lambda outputs: outputs[0] < outputs[1]))
    mine = convolve(fetched_and_padded(x, window_need((first, last), *window), mode), window)
    assert torch.equal(mine, whole[..., first:last])


@st.composite
def transposed(draw: DrawFn) -> tuple[Window, int, int, Interval]:
    """A window, an `output_padding` and an extent that make outputs, and some of those."""
    window, extent = draw(windows), draw(st.integers(1, 8))
    extra = draw(st.integers(0, max(window.stride, window.dilation) - 1))
    outputs = (extent - 1) * window.stride - 2 * window.padding + window.dilation * (window.kernel - 1) + extra + 1
    assume(outputs > 0)
    return window, extra, extent, draw(intervals(0, outputs))


@cases(100, case=transposed())
def test_a_transposed_window_needs_the_hull_of_its_columns(case: tuple[Window, int, int, Interval]) -> None:
    window, extra, extent, (first, last) = case
    start, stop = transposed_need((first, last), *window, extent)
    assert 0 <= start <= stop <= extent
    without_holes = window._replace(kernel=window.dilation * (window.kernel - 1) + 1, dilation=1)
    inputs = torch.eye(extent).unsqueeze(1)
    spread = F.pad(convolve_transposed(inputs, without_holes._replace(padding=0), 0), (0, extra)).squeeze(1)
    reaching = spread[:, window.padding :][:, first:last].sum(1)  # over the inputs
    assert hull_of(reaching) == ((start, stop) if start < stop else None)


@cases(100, case=transposed())
def test_a_transposed_convolution_of_the_need_is_a_block_of_the_whole(case: tuple[Window, int, int, Interval]) -> None:
    window, extra, extent, (first, last) = case
    x = torch.arange(1.0, extent + 1).reshape(1, 1, extent)
    whole = convolve_transposed(x, window, extra)[..., first:last]
    start, stop = transposed_need((first, last), *window, extent)
    mine = torch.zeros(1, 1, last - first)
    if start < stop:
        local = convolve_transposed(x[..., start:stop], window._replace(padding=0), 0)
        offset = start * window.stride - window.padding  # the output at which `local` begins
        mine = F.pad(local, (offset - first, last - offset - local.shape[-1]))
    assert torch.equal(mine, whole)


def test_no_outputs_need_nothing() -> None:
    start, stop = window_need((3, 3), 3, 2, 1, 1)
    assert start == stop
    start, stop = transposed_need((50, 50), 3, 2, 1, 1, extent=8)
    assert start == stop == 8
