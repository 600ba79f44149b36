"""Needs by labels: every dim of every tensor has a name, as in einsum.

A dim whose label is in the result follows the box; the others are whole. A dim of extent 1 broadcasts.

    q (b h l e), k (b h s e)  ->  b h l s      a box of rows l and columns s needs those rows of q and of k
    x (b n k), weight (m k)   ->  b n m        a box needs its rows of x, and its rows of the weight, all of k
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from ..grid import Box, Shape
from .call import LocalFunction, OperatorCall
from .on_boxes import Local, Needs

Labels = Sequence[str]


def numbered(prefix: str, count: int) -> list[str]:
    """Labels for this many dims."""
    return [f"{prefix}{i}" for i in range(count)]


def whole_of(shape: Shape) -> Box:
    """All of a tensor."""
    return Box.of_shape(shape)


def none_of(shape: Shape) -> Box:
    """Nothing of a tensor: only its dtype and device matter."""
    return Box((0,) * len(shape), (0,) * len(shape))


def needs_by_labels(
    shapes: Sequence[Shape], operands: Sequence[Labels], shape: Shape, result: Labels, whole: Collection[str] = ()
) -> Needs:
    """What a box of the result needs of tensors with these labels; of those without labels, everything."""
    places = {label: d for d, label in enumerate(result) if label not in whole}
    plans = [_plan(each, labels, shape, places) for each, labels in zip(shapes, operands, strict=False)]
    rest = [whole_of(each) for each in shapes[len(operands) :]]

    def needs(box: Box) -> Sequence[Box]:
        return [*(plan(box) for plan in plans), *rest]

    return needs


def _plan(shape: Shape, labels: Labels, result: Shape, places: dict[str, int]) -> Callable[[Box], Box]:
    follows = [places.get(label) for label in labels]
    follows = [d if d is not None and result[d] == n else None for d, n in zip(follows, shape, strict=True)]
    if follows == list(range(len(result))):
        return lambda box: box
    if all(d is None for d in follows):
        everything = whole_of(shape)
        return lambda box: everything
    dims = list(zip(follows, shape, strict=True))

    def part(box: Box) -> Box:
        start, stop = box.start, box.stop
        return Box(
            tuple(0 if d is None else start[d] for d, _ in dims), tuple(n if d is None else stop[d] for d, n in dims)
        )

    return part


def by_labels(
    call: OperatorCall,
    operands: Sequence[Labels],
    result: Labels,
    run: LocalFunction | None = None,
    whole: Collection[str] = (),
    flops: float = 1.0,
) -> Local:
    """An operator whose dims have labels; those in `whole` are computed whole, and what the box asks for is kept."""
    call_on = run or call.locally()
    needs = needs_by_labels([each.shape for each in call.tensors], operands, call.result.shape, result, whole)
    dims = [d for d, label in enumerate(result) if label in whole]
    if dims:
        return Local(needs, lambda box, *tensors: kept(call_on(*tensors), box, dims), flops)
    return Local(needs, lambda box, *tensors: call_on(*tensors), flops)


def kept(y: Any, box: Box, dims: Sequence[int]) -> Any:
    """The part on the box of one or several results that are whole along `dims`."""
    if isinstance(y, Tensor):
        for d in dims:
            length = box.stop[d] - box.start[d]
            y = y if y.shape[d] == length else y.narrow(d, box.start[d], length)
        return y
    return tuple(kept(each, box, dims) for each in y)


def along(call: OperatorCall, dims: Sequence[int], run: LocalFunction | None = None, flops: float = 1.0) -> Local:
    """The operator itself, on tensors that are whole along these dims; along the others, rows do not meet.

    The result has as many dims as the first tensor; all others are whole.
    """
    labels = numbered("d", call.tensors[0].dim)
    return by_labels(call, [labels], labels, run, [labels[d] for d in dims], flops)
