"""Products of tensors: matmul and its relatives, einsum, linear.

Every dim of every tensor has a label, as in einsum. Labels of the result may be cut: each worker makes its block of the
result from the parts of the tensors that this block needs. Labels that are summed over are whole.

    q (b h l e), k (b h s e)  ->  b h l s       l cut: each worker has its own queries, and all keys
    x (b n k), a weight (m k) ->  b n m         n cut: each worker has its own rows, and the whole weight
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...grid import Grid, Interval, Layout, Needs
from ..placement import Cut, GlobalTensor, Partial, Replicated, Want, grid_along
from .call import Call, LocalFunction, NoRule, NothingCut, Placed
from .pointwise import common_layout, needed_by
from .table import rule

Labels = Sequence[str]
WORTH_CUTTING = 1 << 20
"""From this many multiplications on, a product of replicated tensors is divided among the workers."""


def labelled(call: Call, operands: Sequence[Labels], result: Labels, whole: Labels) -> Layout | None:
    """The layout of the result, or None: it follows the tensor that is cut most along its labels, except `whole`."""
    tensors = call.tensors[: len(operands)]
    found: list[tuple[int, Layout]] = []
    for value, labels in sorted(zip(tensors, operands, strict=True), key=lambda pair: -pair[0].volume):
        layout = value.layout
        if layout is None:
            continue
        places = {label: d for d, label in enumerate(result) if label not in whole}
        useful = 1
        for d, label in enumerate(labels):
            if label in places and value.shape[d] == call.result.shape[places[label]]:
                useful *= layout.grid.shape[d]
        target = layout_of_result(call, layout, labels, result, whole)
        if target is not None:
            found.append((useful, target))
    return max(found, key=lambda each: each[0])[1] if found else None


def layout_of_result(call: Call, layout: Layout, labels: Labels, result: Labels, whole: Labels) -> Layout | None:
    """The layout of the result that follows a tensor's; other dims are cut in place of those that are summed over."""
    shape = call.result.shape
    at = {label: d for d, label in enumerate(labels) if label not in whole}
    grid = []
    for label, n in zip(result, shape, strict=True):
        d = at.get(label)
        grid.append(layout.grid.shape[d] if d is not None and layout.global_shape[d] == n else 1)
    order = [at[label] for label, p in zip(result, grid, strict=True) if p > 1]
    if math.prod(grid) == call.workers.size and order == sorted(order):
        cuts = [layout.cuts[at[label]] if p > 1 else (0, n) for label, p, n in zip(result, grid, shape, strict=True)]
        return Layout(Grid(layout.grid.ranks, tuple(grid)), tuple(cuts))
    placed = call.workers.spread(shape, [d for d, label in enumerate(result) if label in whole])
    return placed.layout if isinstance(placed, Cut) else None


def needed_of(target: Layout, value: GlobalTensor, labels: Labels, result: Labels) -> Want:
    """What the blocks of the result need of a tensor: their own part along shared labels, all along the others."""
    places = {label: d for d, label in enumerate(result)}
    grid = target.grid
    free = [d for d, label in enumerate(result) if label not in labels and grid.shape[d] > 1]
    intervals: list[tuple[Interval, ...]] = [((0, 1),) * grid.shape[d] for d in free]
    order = list(free)
    for label, n in zip(labels, value.shape, strict=True):
        d = places.get(label)
        if d is None or grid.shape[d] == 1:
            intervals.append(((0, n),))
            continue
        own = tuple(pairwise(target.cuts[d])) if n == target.cuts[d][-1] else ((0, n),) * grid.shape[d]
        intervals.append(own)
        order.append(d)
    return Needs(grid_along(grid, order, [len(line) for line in intervals]), tuple(intervals))


def product(
    call: Call, operands: Sequence[Labels], result: Labels, run: LocalFunction | None = None, whole: Labels = ()
) -> Placed:
    """Any sum of products: each worker makes its block of the result, which is uncut along `whole`."""
    tensors, run = call.tensors, run or call.locally()
    target = target_of(call, operands, result, whole)
    if target is None and call.cut:
        raise NothingCut
    if target is None:
        return Placed(Replicated(), run, [Replicated()] * len(tensors))
    pairs = zip(tensors, operands, strict=False)
    wants: list[Want] = [needed_of(target, value, labels, result) for value, labels in pairs]
    wants += [Replicated()] * (len(tensors) - len(operands))
    return Placed(Cut(target), plain(run, tensors, wants), wants)


def target_of(call: Call, operands: Sequence[Labels], result: Labels, whole: Labels = ()) -> Layout | None:
    """The layout of the result of a product; None if every worker computes all of it."""
    target = labelled(call, operands, result, whole) if call.cut else None
    return target or _worth_cutting(call, operands)


def _worth_cutting(call: Call, operands: Sequence[Labels]) -> Layout | None:
    """The layout of a product of replicated tensors that is large enough to be divided among the workers; else None."""
    pairs = zip(call.tensors, operands, strict=False)
    extents = {label: n for value, labels in pairs for label, n in zip(labels, value.shape, strict=True)}
    placed = call.workers.spread(call.result.shape) if math.prod(extents.values()) >= WORTH_CUTTING else None
    return placed.layout if isinstance(placed, Cut) else None


def plain(run: LocalFunction, tensors: Sequence[GlobalTensor], wants: Sequence[Want]) -> LocalFunction:
    """`run` on tensors without the additional leading dims that `Needs` on a larger grid give them."""
    dims = [value.dim for value in tensors]
    if all(not isinstance(want, Needs) or want.grid.dim <= n for want, n in zip(wants, dims, strict=True)):
        return run

    def stripped(*given: Any) -> Any:
        before, parts = given[: -len(dims)], zip(given[-len(dims) :], dims, strict=True)  # a random stream comes first
        return run(*before, *(x.reshape(x.shape[x.dim() - n :]) if x.dim() > n else x for x, n in parts))

    return stripped


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot")
def matmul(call: Call) -> Placed:
    a, b = call.tensors
    if a.dim == 1 and b.dim == 1:
        return contraction(call)
    leads = max(a.dim - 2, 0), max(b.dim - 2, 0)
    most = max(leads)
    batch = _names("b", most)  # leading dims broadcast, aligned at the last
    first = ["k"] if a.dim == 1 else [*batch[most - leads[0] :], "n", "k"]
    second = ["k"] if b.dim == 1 else [*batch[most - leads[1] :], "k", "m"]
    result = batch + ["n"] * (a.dim > 1) + ["m"] * (b.dim > 1)
    return product(call, [first, second], result)


def contraction(call: Call) -> Placed:
    """The inner product of two vectors: of each block, then summed over the workers."""
    target = common_layout(call, call.tensors[0].shape)
    return Placed(Partial(), call.locally(), [needed_by(target, value) for value in call.tensors])


@rule("linear")
def linear(call: Call) -> Placed:
    x, weight = call.tensors[:2]
    lead = _names("b", x.dim - 1)
    operands = [[*lead, "k"], ["m", "k"] if weight.dim == 2 else ["k"]]
    result = [*lead, "m"] if weight.dim == 2 else lead
    if len(call.tensors) > 2:
        operands.append(["m"] if weight.dim == 2 else [])
    return product(call, operands, result)


ADDED = {
    "addmm": ("nk", "km", "nm"), "baddbmm": ("bnk", "bkm", "bnm"), "addbmm": ("bnk", "bkm", "nm"), "addmv": ("nk", "k", "n"),
    "addr": ("n", "m", "nm"),
}  # fmt: skip


@rule(*ADDED)
def add_product(call: Call) -> Placed:
    """A tensor and a product."""
    first, second, result = ADDED[call.kind]
    return product(call, [result[len(result) - call.tensors[0].dim :], first, second], result)


@rule("einsum")
def einsum(call: Call) -> Placed:
    left, arrow, right = call["equation"].replace(" ", "").partition("->")
    terms, dims = left.split(","), [value.dim for value in call.tensors]
    counts = [n - len(term) + 3 if "." in term else 0 for term, n in zip(terms, dims, strict=True)]
    dots = _names(".", max(counts))  # the dims of an ellipsis broadcast, aligned at the last

    def labels(term: str, count: int) -> list[str]:
        before, ellipsis, after = term.partition("...")
        return [*before, *(dots[len(dots) - count :] if ellipsis else []), *after]

    operands = [labels(term, count) for term, count in zip(terms, counts, strict=True)]
    if any(len(set(each)) < len(each) for each in operands):
        raise NoRule("an einsum with a label twice in one tensor")
    letters = left.replace(",", "").replace(".", "")
    once = sorted(letter for letter in letters if letters.count(letter) == 1)
    return product(call, operands, labels(right, len(dots)) if arrow else [*dots, *once])


@rule("tensordot")
def tensordot(call: Call) -> Placed:
    a, b = call.tensors
    first, second = _names("n", a.dim), _names("m", b.dim)
    summed = list(zip(call["dims_self"], call["dims_other"], strict=True))
    for i, j in summed:
        first[i % a.dim] = second[j % b.dim] = f"k{i % a.dim}"
    result = [label for label in (*first, *second) if not label.startswith("k")]
    return product(call, [first, second], result)


@rule("outer", "ger")
def outer(call: Call) -> Placed:
    return product(call, [["n"], ["m"]], ["n", "m"])


@rule("meshgrid")
def meshgrid(call: Call) -> Placed:
    """Each vector repeated along the dims of the others: a worker needs the part of it that its block shows."""
    labels = _names("x", len(call.results[0].shape))
    if call.given.get("indexing") == "xy":
        labels[:2] = reversed(labels[:2])
    call.largest_cut()
    own = [
        [label] if value.dim else [] for label, value in zip(_names("x", len(call.tensors)), call.tensors, strict=True)
    ]
    target = labelled(call, own, labels, ())
    if target is None:
        raise NothingCut
    wants: list[Want] = [
        needed_of(target, value, label, labels) for value, label in zip(call.tensors, own, strict=True)
    ]
    return Placed(Cut(target), plain(call.locally(), call.tensors, wants), wants)


@rule("cross", "linalg_cross", "_softmax_backward_data", "_log_softmax_backward_data")
def along_one(call: Call) -> Placed:
    """Operators on several tensors alike, along a dim that is whole."""
    labels = _names("x", call.result.dim)
    operands = [labels[len(labels) - value.dim :] for value in call.tensors]
    dim = call.given.get("dim")
    if dim is None:  # the first with three elements
        dim = call.result.shape.index(3)
    return product(call, operands, labels, call.locally(dim=dim), whole=[labels[dim]])
