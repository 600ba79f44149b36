"""The input range that the outputs ``[o0, o1)`` of a windowed layer need, along one dim.

    convolution, pooling        [s o0 - p,  s (o1 - 1) - p + d (k - 1) + 1)
    transposed convolution      [ceil((o0 + p - d (k - 1)) / s),  floor((o1 - 1 + p) / s) + 1)

k kernel, s stride, p padding, d dilation. The range may extend outside the tensor. For circular padding the route then
wraps. All other modes follow the *hull-then-pad* rule: fetch the hull of the real rows that are needed (for reflection
by p rows, the first p + 1), pad it locally with torch, and crop. Torch supplies the adjoint of the padding, every
element is sent once, and no route has to reverse rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PartitionError
from .cuts import Interval


@dataclass(frozen=True, slots=True)
class Padding:
    """Fetch `hull`, pad it by `before` and `after` rows, and take `crop` of the result.

    Parameters
    ----------
    hull : the real rows to fetch
    before, after : the rows to pad on each side
    crop : which of the padded rows to take

    Examples
    --------
    >>> gridwise.grid.Padding(hull=(0, 5), before=1, after=0, crop=(0, 6)).before
    1
    """

    hull: Interval
    before: int
    after: int
    crop: Interval


def window_need(outputs: Interval, kernel: int, stride: int, padding: int, dilation: int) -> Interval:
    """The inputs that the outputs ``[o0, o1)`` of a convolution or pooling read; empty for no outputs.

    Parameters
    ----------
    outputs : the interval of outputs
    kernel, stride, padding, dilation : the layer's, along this dim

    Examples
    --------
    >>> window_need((2, 4), kernel=3, stride=2, padding=1, dilation=1)
    (3, 8)
    """
    first, last = outputs
    start = stride * first - padding
    if first >= last:
        return start, start
    return start, stride * (last - 1) - padding + dilation * (kernel - 1) + 1


def transposed_need(outputs: Interval, kernel: int, stride: int, padding: int, dilation: int, extent: int) -> Interval:
    """The inputs, out of `extent`, that reach the outputs ``[o0, o1)`` of a transposed convolution.

    The holes of a dilated kernel count as reached.

    Parameters
    ----------
    outputs : the interval of outputs
    kernel, stride, padding, dilation : the layer's, along this dim
    extent : how many inputs there are

    Examples
    --------
    >>> transposed_need((3, 5), kernel=3, stride=2, padding=1, dilation=1, extent=8)
    (1, 3)
    """
    first, last = outputs
    start = -((dilation * (kernel - 1) - first - padding) // stride)
    stop = (last - 1 + padding) // stride + 1
    start, stop = max(start, 0), min(stop, extent)
    return (start, stop) if first < last and start < stop else (min(start, extent),) * 2


def hull_then_pad(need: Interval, extent: int, mode: str) -> Padding:
    """How to obtain the rows `need` of a tensor of `extent` rows that is padded by `mode` beyond its ends.

    `mode` is 'constant' (or 'zeros'), 'reflect' or 'replicate'; 'circular' is left to the route. An empty need has an
    empty hull and no padding, so torch, which refuses to reflect zero rows, need not be called.

    >>> hull_then_pad((-2, 3), 10, "reflect")
    Padding(hull=(0, 3), before=2, after=0, crop=(0, 5))
    >>> hull_then_pad((-2, 1), 10, "reflect")
    Padding(hull=(0, 3), before=2, after=0, crop=(0, 3))
    """
    start, stop = need
    if start >= stop:
        return Padding((max(0, min(start, extent)),) * 2, 0, 0, (0, 0))
    before, after = max(0, -start), max(0, stop - extent)
    if mode in ("constant", "zeros"):
        hull = max(0, min(start, extent)), max(0, min(stop, extent))
        return Padding(hull, min(before, stop - start), min(after, stop - start), (0, stop - start))
    if mode not in ("reflect", "replicate"):
        raise PartitionError(f"`padding_mode` (={mode!r}) must be 'zeros', 'constant', 'reflect' or 'replicate' here.")
    widest = max(before, after)
    mirrored = widest if mode == "reflect" else 0
    if extent <= mirrored:
        raise PartitionError(
            f"a padding of {widest} rows with `padding_mode` (={mode!r}) needs more than {mirrored} rows in all, "
            f"the tensor has {extent}.\n  fix: a smaller padding, or padding_mode="
            + ("'replicate'." if extent else "'zeros'.")
        )
    low, high = max(start, 0), min(stop, extent)
    if before:
        low, high = 0, max(high, mirrored + 1)
    if after:
        low, high = min(low, extent - 1 - mirrored), extent
    return Padding((low, high), before, after, (start - low + before, stop - low + before))


def leave_to_torch(padding: Padding, outputs: Interval, kernel: int, stride: int, dilation: int) -> int | None:
    """The symmetric zero padding with which torch makes exactly these outputs from the hull; None if there is none.

    Nothing is then padded by hand: torch pads `before` rows on either side, and no window reads surplus at the end.

    >>> leave_to_torch(hull_then_pad((-1, 9), 8, "zeros"), (0, 8), kernel=3, stride=1, dilation=1)
    1
    >>> leave_to_torch(hull_then_pad((-1, 5), 8, "zeros"), (0, 4), kernel=3, stride=1, dilation=1) is None
    True
    """
    rows = padding.hull[1] - padding.hull[0]
    made = (rows + 2 * padding.before - dilation * (kernel - 1) - 1) // stride + 1
    return padding.before if rows and made == outputs[1] - outputs[0] else None


def adaptive_need(outputs: Interval, extent: int, size: int) -> Interval:
    """The inputs, out of `extent`, that the outputs ``[o0, o1)``, out of `size`, of adaptive pooling read.

    Parameters
    ----------
    outputs : the interval of outputs
    extent : how many inputs there are
    size : how many outputs there are

    Examples
    --------
    >>> adaptive_need((1, 3), extent=10, size=4)
    (2, 8)
    """
    first, last = outputs
    start = first * extent // size if size else 0
    return (start, -(-last * extent // size)) if first < last else (start, start)


def adaptive_runs(outputs: Interval, extent: int, size: int) -> list[Interval]:
    """`outputs` cut into runs that torch's adaptive pooling computes correctly from their own inputs alone.

    Torch counts coordinates from the start of the block that it is given, so windows in the middle of a tensor are
    generally shifted. A run ends where they would be. Runs of one output are always correct, and so are whole blocks
    where `size` divides `extent`.

    >>> adaptive_runs((0, 4), extent=8, size=4), adaptive_runs((1, 4), extent=10, size=4)
    ([(0, 4)], [(1, 3), (3, 4)])
    """
    runs, (first, last) = [], outputs
    while first < last:
        stop = last
        while not _restarts_alike((first, stop), extent, size):
            stop -= 1
        runs.append((first, stop))
        first = stop
    return runs


def _restarts_alike(outputs: Interval, extent: int, size: int) -> bool:
    start, stop = adaptive_need(outputs, extent, size)
    count = outputs[1] - outputs[0]
    for i in range(count):
        here = adaptive_need((outputs[0] + i, outputs[0] + i + 1), extent, size)
        if adaptive_need((i, i + 1), stop - start, count) != (here[0] - start, here[1] - start):
            return False
    return True


def sliced_need(rows: range, outputs: Interval) -> Interval:
    """The input rows from the first to the last of the outputs ``[o0, o1)`` of a slice that selects `rows`.

    >>> sliced_need(range(3, 20, 4), (1, 3))
    (7, 12)
    """
    first, last = outputs
    return (rows[first], rows[last - 1] + 1) if first < last else (0, 0)
