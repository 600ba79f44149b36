"""Products of tensors: matmul and its relatives, einsum, linear, attention.

Every dim of every tensor has a label, as in einsum. Labels of the result may be cut: each worker makes its block of the
result from the parts of the tensors that this block needs. Labels that are summed over are whole.

    q (b h l e), k (b h s e)  ->  b h l s       l cut: each worker has its own queries, and all keys
    x (b n k), a weight (m k) ->  b n m         n cut: each worker has its own rows, and the whole weight
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...grid import Box, Grid, Interval, Layout, Needs
from ...operators.random.random_stream import Elements, RandomStream
from ...torch_internals.operators import is_flash_attention, safe_softmax
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
    target = labelled(call, operands, result, whole) if call.cut else None
    target = target or _worth_cutting(call, operands)
    if target is None and call.cut:
        raise NothingCut
    if target is None:
        return Placed(Replicated(), run, [Replicated()] * len(tensors))
    pairs = zip(tensors, operands, strict=False)
    wants: list[Want] = [needed_of(target, value, labels, result) for value, labels in pairs]
    wants += [Replicated()] * (len(tensors) - len(operands))
    return Placed(Cut(target), plain(run, tensors, wants), wants)


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


@rule("scaled_dot_product_attention", "_scaled_dot_product_attention_math")
def attention(call: Call) -> Placed:
    """Attention: batch, heads and queries may be cut; each worker gets all keys and values of its batch and heads."""
    query, key = call.tensors[:2]
    lead = query.dim - 2
    batch = _names("b", lead)
    operands = [[*batch, "l", "e"], [*batch, "s", "e"], [*batch, "s", "v"]]
    mask = call["attn_mask"]
    if mask is not None:
        operands.append([*batch[lead - (mask.dim - 2) :], "l", "s"] if mask.dim >= 2 else ["s"])
    result = [*batch, "l", "v"]
    if call.given.get("enable_gqa"):
        raise NoRule("attention with grouped queries")
    if call["dropout_p"]:
        return _with_dropout(call, operands, result)
    placed = product(call, operands, result, whole=["v"])
    if not call["is_causal"] or not isinstance(placed.outputs, Cut):
        return placed
    layout = placed.outputs.layout
    if layout.grid.shape[lead] == 1:  # all queries are here: torch's own operator
        return placed
    block = call.block(layout)
    start, stop = block.start[lead], block.stop[lead]
    scale, keys = call.given.get("scale"), key.shape[-2]

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = torch.arange(start, stop, device=q.device)[:, None]
        sees = rows >= torch.arange(keys, device=q.device)
        if _leaves_out_later_keys(q, k, v):
            scores = (q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)) @ k.transpose(-2, -1)
            return scores.masked_fill(~sees, -math.inf).softmax(-1) @ v
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, sees, scale=scale)

    return replace(placed, run=plain(causal, call.tensors, placed.inputs))


def _leaves_out_later_keys(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch's causal attention overwrites the scores of later keys, and it matters: it adds -inf elsewhere."""
    if q.device.type != "cpu" or torch.compiler.is_compiling() or not q.numel():
        return False
    is_flash = is_flash_attention(q, k, v, True)
    return is_flash and not bool(q.isfinite().all() & k.isfinite().all())


def _with_dropout(call: Call, operands: Sequence[Labels], result: Labels) -> Placed:
    """Attention with dropout, by the global indices of the attention weights."""
    placed = product(call, operands, result, whole=["v"])
    query, key = call.tensors[:2]
    p, causal, scale = call["dropout_p"], call["is_causal"], call.given.get("scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    shape = (*query.shape[:-1], key.shape[-2])
    block = None
    if isinstance(placed.outputs, Cut):
        own = call.block(placed.outputs.layout)
        block = Box((*own.start[:-1], 0), (*own.stop[:-1], shape[-1]))

    def attended(stream: RandomStream, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = (q * scale) @ k.transpose(-2, -1)
        if causal:
            first = 0 if block is None else block.start[-2]
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(first)
        if mask is not None:
            added = (
                torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
                if mask.dtype == torch.bool
                else mask
            )
            scores = scores + added
        shares = scores.softmax(-1) if mask is None else safe_softmax(scores, -1)  # zeros where all is hidden
        return stream.scaled(shares, stream.kept(shares, p, Elements(shape, block)), p) @ v

    return replace(placed, run=plain(attended, call.tensors, placed.inputs), draws=True)
