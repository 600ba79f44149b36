"""Views: the same elements under other dims.

A change of shape goes by groups of dims that hold the same elements before and after (`grid.reshape.dim_groups`). A
group of one dim keeps its interval. In any other, the elements of the box lie in an interval of the group's row-major
order, and the box of the input is the smallest that contains this interval. If it has no more elements than the box,
a reshape makes one from the other; otherwise elements are taken from the interval at the distances of the new dims:

    (H W) -> (H, W)     rows 2..3, columns 1..2 of 5: elements 11..17 in steps of 5, two at a time; a view, no copy
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..grid import Box, Interval, Shape
from ..grid.reshape import dim_groups
from ..grid.row_major import flat_span, strides_of
from .call import OperatorCall
from .labels import by_labels, none_of, numbered
from .on_boxes import Builder, Composed, Local, Needs
from .pointwise import aligned
from .table import NotOnBoxes, operator


class GroupedDims:
    """Dims of the old and the new shape that hold the same elements."""

    def __init__(self, before: range, after: range, old: Shape, new: Shape) -> None:
        self.before, self.after = before, after
        self.old, self.new = tuple(old[d] for d in before), tuple(new[d] for d in after)
        self.old_strides, self.new_strides = strides_of(self.old), strides_of(self.new)
        self.is_kept = self.old == self.new

    def part(self, box: Box) -> Box:
        """The box along the new dims."""
        return Box(tuple(box.start[d] for d in self.after), tuple(box.stop[d] for d in self.after))

    def need(self, part: Box) -> Box:
        """The smallest box of the old dims with the interval of row-major order in which the new box lies."""
        if self.is_kept:
            return part
        first, last = flat_span(self.new, part)
        last -= 1
        start, stop, same = [], [], True
        for n, stride in zip(self.old, self.old_strides, strict=True):
            a, b = (first // stride % n, last // stride % n) if same else (0, n - 1)
            same = same and a == b
            start.append(a)
            stop.append(b + 1)
        return Box(tuple(start), tuple(stop))

    def taken(self, x: Tensor, part: Box, need: Box, dim: int) -> Tensor:
        """The elements of the new box from one dim, at `dim`, that has those of `need` in row-major order."""
        first, last = flat_span(self.new, part)
        x = x.narrow(dim, first - flat_span(self.old, need)[0], last - first)
        for k, (extent, stride) in enumerate(zip(part.shape, self.new_strides, strict=True)):
            inner = 1 + sum((n - 1) * s for n, s in zip(part.shape[k + 1 :], self.new_strides[k + 1 :], strict=True))
            if extent * inner == x.shape[dim]:
                x = x.unflatten(dim, (extent, inner))
            else:
                x = x.unfold(dim, inner, stride).movedim(-1, dim + 1)
            dim += 1
        return x.squeeze(dim)


def reshaped(old: Shape, new: Shape) -> Local:
    """The tensor of shape `old` under the shape `new`."""
    if not prod(old):
        raise NotOnBoxes("a view of a tensor without elements")
    groups = [GroupedDims(before, after, old, new) for before, after in dim_groups(old, new)]

    def need_of(box: Box) -> list[Box]:
        parts = [group.need(group.part(box)) for group in groups]
        return [Box(tuple(a for part in parts for a in part.start), tuple(b for part in parts for b in part.stop))]

    def run(box: Box, x: Tensor) -> Tensor:
        shape = box.shape
        if x.numel() == prod(shape):
            return x.reshape(shape)
        parts = [(group, group.part(box)) for group in groups]
        needs = [group.need(part) for group, part in parts]
        x = x.reshape([n for (group, _), need in zip(parts, needs, strict=True) for n in _line(group, need)])
        dim = 0
        for (group, part), need in zip(parts, needs, strict=True):
            x = x if group.is_kept else group.taken(x, part, need, dim)
            dim += len(group.after)
        return x

    return Local(need_of, run)


def _line(group: GroupedDims, need: Box) -> Sequence[int]:
    return need.shape if group.is_kept else (need.volume,)


@operator(
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as", "ravel", "unsqueeze", "squeeze",
    "view_copy", "_reshape_alias", "unsqueeze_copy", "squeeze_copy", "atleast_1d", "atleast_2d", "atleast_3d",
)  # fmt: skip
def reshape(call: OperatorCall) -> Local:
    """Any change of shape that keeps the order of the elements."""
    x, dtype = call.tensors[0], call.given.get("dtype")
    if len(call.results) > 1:
        raise NotOnBoxes("several tensors at once")
    if dtype is not None:
        if dtype.itemsize != x.dtype.itemsize:
            raise NotOnBoxes("a view whose elements have another size")
        return Local(lambda box: [box], lambda box, x: x.view(dtype))
    made = reshaped(x.shape, call.result.shape)
    return made if len(call.tensors) == 1 else _of_first(call, made.needs, made.run)


def _of_first(call: OperatorCall, needs: Needs, run: Callable[[Box, Tensor], Tensor]) -> Local:
    """Of further tensors only the shape matters."""
    others = [none_of(each.shape) for each in call.tensors[1:]]
    return Local(lambda box: [*needs(box), *others], lambda box, x, *_: run(box, x))


def order_of(call: OperatorCall, dim: int) -> list[int]:
    """The dims of the input in the order of the output."""
    order, kind = list(range(dim)), call.kind.removesuffix("_copy")
    if kind == "permute":
        return [d % dim for d in call["dims"]]
    if kind in ("transpose", "swapaxes", "swapdims", "t", "mT"):
        names = {"transpose": ("dim0", "dim1"), "swapaxes": ("axis0", "axis1"), "swapdims": ("dim0", "dim1")}
        if kind not in names and dim < 2:
            return order
        a, b = (call[name] % max(1, dim) for name in names[kind]) if kind in names else (dim - 2, dim - 1)
        if dim:
            order[a], order[b] = order[b], order[a]
        return order
    if kind == "numpy_T":
        return order[::-1]
    source, target = (call.dims(name, dim) for name in ("source", "destination"))
    rest = [d for d in order if d not in source]
    for place, d in sorted(zip(target, source, strict=True)):
        rest.insert(place, d)
    return rest


@operator(
    "permute", "transpose", "swapaxes", "swapdims", "t", "numpy_T", "movedim", "moveaxis", "permute_copy",
    "transpose_copy", "t_copy", "mT",
)  # fmt: skip
def permute(call: OperatorCall) -> Local:
    """The dims in another order."""
    x = call.tensors[0]
    order = order_of(call, x.dim)
    labels = numbered("d", x.dim)
    return by_labels(call, [labels], [labels[d] for d in order], lambda x: x.permute(order))


@operator("rot90")
def turned(call: OperatorCall) -> Composed:
    """Two dims turned by right angles."""
    aten, dims, turns = torch.ops.aten, [d % call.tensors[0].dim for d in call["dims"]], call["k"] % 4
    reversed_dims = [[], [dims[1]], dims, [dims[0]]][turns]

    def build(builder: Builder, x: Any) -> Any:
        x = builder.call(aten.flip.default, x, reversed_dims)
        return builder.call(aten.transpose.int, x, *dims) if turns % 2 else x

    return Composed(build)


@operator("expand", "expand_as", "broadcast_to", "expand_copy")
def expand(call: OperatorCall) -> Local:
    """Dims of extent 1 repeated without a copy."""
    result = call.result.shape
    labels = numbered("d", len(result))
    made = by_labels(call, [aligned(labels, call.tensors[0].dim)], labels)
    return _of_first(call, lambda box: list(made.needs(box))[:1], lambda box, x: x.expand(box.shape))


@operator("view_as_real", "view_as_real_copy")
def view_as_real(call: OperatorCall) -> Local:
    """Complex numbers as pairs, in a new last dim."""
    labels = numbered("d", call.tensors[0].dim)
    return by_labels(call, [labels], [*labels, "pair"], lambda x: torch.view_as_real(x.resolve_conj()), ["pair"])


@operator("view_as_complex", "view_as_complex_copy")
def view_as_complex(call: OperatorCall) -> Local:
    """Pairs in the last dim as complex numbers."""
    labels = numbered("d", call.result.dim)
    return by_labels(call, [[*labels, "pair"]], labels, _complex)


def _complex(x: Tensor) -> Tensor:
    try:
        return torch.view_as_complex(x)
    except RuntimeError:  # pairs that do not lie next to one another in memory
        return torch.view_as_complex(x.contiguous())


class Diagonal:
    """Where the elements of a diagonal lie in two dims of a tensor: element k at row ``k + row``, column ``k + column``."""

    def __init__(self, offset: int, first: int, second: int, length: int) -> None:
        self.row, self.column, self.length = max(0, -offset), max(0, offset), length
        self.first, self.second = first, second

    def within(self, box: Box) -> Interval:
        """Which elements lie in a box of the tensor."""
        a, b = self.first, self.second
        start = max(box.start[a] - self.row, box.start[b] - self.column, 0)
        stop = min(box.stop[a] - self.row, box.stop[b] - self.column, self.length)
        return (start, stop) if start < stop else (0, 0)

    def whole(self, box: Box) -> Box:
        """The box of the tensor in which a box of the diagonal lies."""
        first, last = box.start[-1], box.stop[-1]
        intervals = list(zip(box.start[:-1], box.stop[:-1], strict=True))
        of = {self.first: (first + self.row, last + self.row), self.second: (first + self.column, last + self.column)}
        for d in sorted(of):
            intervals.insert(d, of[d])
        return Box.of_intervals(intervals)

    def part(self, box: Box) -> Box:
        """The box of the diagonal, whose elements are the last dim, that lies in a box of the tensor."""
        rest = [d for d in range(len(box.start)) if d not in (self.first, self.second)]
        start, stop = self.within(box)
        return Box((*(box.start[d] for d in rest), start), (*(box.stop[d] for d in rest), stop))

    def put(self, x: Tensor, diagonal: Tensor, box: Box) -> Tensor:
        """The box of a tensor with these elements on the diagonal."""
        if not diagonal.shape[-1]:
            return x
        offset = self.column - self.row + box.start[self.first] - box.start[self.second]
        return x.diagonal_scatter(diagonal, offset, self.first, self.second)


@operator("diagonal", "diagonal_copy", "linalg_diagonal")
def diagonal(call: OperatorCall) -> Local:
    """The elements with the same index in two dims, perhaps at an offset, in a new last dim."""
    x = call.tensors[0]
    where = Diagonal(call["offset"], call["dim1"] % x.dim, call["dim2"] % x.dim, call.result.shape[-1])
    return Local(lambda box: [where.whole(box)], lambda box, x: x.diagonal(0, where.first, where.second))


@operator("diag_embed")
def diag_embed(call: OperatorCall) -> Local:
    """A tensor whose last dim becomes a diagonal; zero elsewhere."""
    dims, x = call.result.dim, call.tensors[0]
    where = Diagonal(call["offset"], call["dim1"] % dims, call["dim2"] % dims, x.shape[-1])
    return Local(lambda box: [where.part(box)], lambda box, x: where.put(x.new_zeros(box.shape), x, box))


@operator("diagonal_scatter")
def diagonal_scatter(call: OperatorCall) -> Local:
    """A tensor in which a diagonal is replaced."""
    x, new = call.tensors
    where = Diagonal(call["offset"], call["dim1"] % x.dim, call["dim2"] % x.dim, new.shape[-1])
    return Local(lambda box: [box, where.part(box)], lambda box, x, new: where.put(x, new, box))
