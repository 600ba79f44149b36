"""Products of tensors: matmul and its relatives, einsum, linear.

Every dim of every tensor has a label, as in einsum. A box of the result needs its part along the labels of the result,
and all along the labels that are summed over. Where these are long and the result is small, as in the inner product of
two images, the sum is taken box by box (`Collecting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

from ..grid import Box
from . import sums
from .call import OperatorCall
from .labels import Labels, by_labels, needs_by_labels, numbered
from .on_boxes import Local, Summed
from .pointwise import aligned
from .sums import in_full, kept_in
from .table import NotOnBoxes, operator

Operands = Sequence[Labels]


def product(call: OperatorCall, operands: Operands, result: Labels) -> Local | Summed:
    """Any sum of products of tensors with these labels."""
    extents: dict[str, int] = {}
    for value, labels in zip(call.tensors, operands, strict=True):
        for label, n in zip(labels, value.shape, strict=True):
            extents[label] = max(n, extents.get(label, 1))
    summed = [label for label in extents if label not in result]
    terms = prod(extents[label] for label in summed)
    local = by_labels(call, operands, result, flops=2.0 * terms)
    if not sums.is_collected(call.result.volume, terms, sums.LONG) or len(operands) > 2:
        return local
    labels, run, dims = [*result, *summed], call.locally(), call.result.dim
    space = tuple(extents[label] for label in labels)
    needs = needs_by_labels([each.shape for each in call.tensors], operands, space, labels)
    shape, dtype = call.result.shape, call.result.dtype

    def partial(box: Box, *tensors: Tensor) -> tuple[Tensor, ...]:
        own = Box(box.start[:dims], box.stop[:dims])
        return (in_full(run(*tensors).to(kept_in(dtype)), own, shape),)

    made = Summed(space, needs, partial, lambda total: (total.to(dtype),), 2.0)
    made.local = local
    return made


@operator("matmul", "mm", "bmm", "mv", "dot", "vdot", "linalg_matmul", "linalg_vecdot")
def matmul(call: OperatorCall) -> Local | Summed:
    a, b = call.tensors
    if call.kind == "linalg_vecdot":
        return vecdot(call)
    if min(a.dim, b.dim) == 0:
        raise NotOnBoxes("a product with a number")
    leads = max(a.dim - 2, 0), max(b.dim - 2, 0)
    batch = numbered("b", max(leads))
    first = ["k"] if a.dim == 1 else [*aligned(batch, leads[0]), "n", "k"]
    second = ["k"] if b.dim == 1 else [*aligned(batch, leads[1]), "k", "m"]
    return product(call, [first, second], batch + ["n"] * (a.dim > 1) + ["m"] * (b.dim > 1))


def vecdot(call: OperatorCall) -> Local | Summed:
    dims = max(value.dim for value in call.tensors)
    labels = numbered("b", dims)
    operands = [aligned(labels, value.dim) for value in call.tensors]
    dim = call["dim"] % dims
    return product(call, operands, [label for d, label in enumerate(labels) if d != dim])


@operator("linear")
def linear(call: OperatorCall) -> Local | Summed:
    x, weight = call.tensors[:2]
    lead = numbered("b", x.dim - 1)
    made = ["m"] if weight.dim == 2 else []
    operands = [[*lead, "k"], [*made, "k"]]
    if len(call.tensors) > 2:
        operands.append(made[: call.tensors[2].dim])
    return product(call, operands, [*lead, *made])


@operator("addmm", "baddbmm", "addmv", "addr", "addbmm")
def add_product(call: OperatorCall) -> Local | Summed:
    added, a = call.tensors[:2]
    batch = numbered("b", a.dim - 2)
    of = {
        "addmv": (["n", "k"], ["k"], ["n"]),
        "addr": (["n"], ["m"], ["n", "m"]),
        "addbmm": (["b0", "n", "k"], ["b0", "k", "m"], ["n", "m"]),
    }
    default = [*batch, "n", "k"], [*batch, "k", "m"], [*batch, "n", "m"]
    first, second, result = of.get(call.kind, default)
    return product(call, [aligned(result, added.dim), first, second], result)


@operator("einsum")
def einsum(call: OperatorCall) -> Local | Summed:
    left, arrow, right = call["equation"].replace(" ", "").partition("->")
    terms, dims = left.split(","), [value.dim for value in call.tensors]
    counts = [n - len(term) + 3 if "." in term else 0 for term, n in zip(terms, dims, strict=True)]
    dots = numbered(".", max(counts))  # the dims of an ellipsis broadcast, aligned at the last

    def labels(term: str, count: int) -> list[str]:
        before, ellipsis, after = term.partition("...")
        return [*before, *(aligned(dots, count) if ellipsis else []), *after]

    operands = [labels(term, count) for term, count in zip(terms, counts, strict=True)]
    if any(len(set(each)) < len(each) for each in operands):
        raise NotOnBoxes("an einsum with a label twice in one tensor")
    letters = left.replace(",", "").replace(".", "")
    once = sorted(letter for letter in letters if letters.count(letter) == 1)
    return product(call, operands, labels(right, len(dots)) if arrow else [*dots, *once])


@operator("tensordot")
def tensordot(call: OperatorCall) -> Local | Summed:
    a, b = call.tensors
    first, second = numbered("n", a.dim), numbered("m", b.dim)
    for i, j in zip(call["dims_self"], call["dims_other"], strict=True):
        first[i % a.dim] = second[j % b.dim] = f"k{i % a.dim}"
    result = [label for label in (*first, *second) if not label.startswith("k")]
    return product(call, [first, second], result)


@operator("outer", "ger")
def outer(call: OperatorCall) -> Local | Summed:
    return product(call, [["n"], ["m"]], ["n", "m"])


@operator("_trilinear")
def trilinear(call: OperatorCall) -> Local | Summed:
    labels = numbered("d", call.tensors[0].dim + len(call["expand1"]))
    operands = [[each for d, each in enumerate(labels) if d not in call[f"expand{i}"]] for i in (1, 2, 3)]
    return product(call, operands, [label for d, label in enumerate(labels) if d not in call["sumdim"]])


@operator("cdist", "_cdist_forward")
def cdist(call: OperatorCall) -> Local | Summed:
    """Distances between all pairs of rows."""
    batch = numbered("b", call.result.dim - 2)
    operands = [[*aligned(batch, value.dim - 2), rows, "k"] for rows, value in zip("nm", call.tensors, strict=True)]
    return by_labels(call, operands, [*batch, "n", "m"], flops=3.0 * call.tensors[0].shape[-1])
