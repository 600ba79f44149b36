"""Operators on boxes (`gridwise.operators`) on workers: each makes its block of the output from the boxes that it needs.

Of all ways to cut the output, the one is taken for which the worker that has most to fetch and to read has least. An
operator that couples the rows of a dim needs all of them for any box, so its output is cut along other dims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ...grid import Box, Grid, Layout, Shape, balanced_cuts
from ...grid.arrange import factorisations
from ...nn.engine.copy_and_sum import AllSum
from ...operators.call import LocalFunction
from ...operators.on_boxes import Local, Needs, Summed
from ...operators.on_grids import needs_of_blocks
from ...operators.table import NotOnBoxes, maker_for
from ..movement import applied
from ..placement import Cut, Replicated, Want
from .call import Call, NoRule, NothingCut, Placed
from .empty_blocks import Reaching
from .products import plain

MANY = 64
"""For more workers than these, an output is cut along at most two dims."""


def by_needs(call: Call) -> Placed:
    """The answer for an operator that has no rule, from what it needs of its inputs for a box of its output."""
    make = maker_for(call.op)
    if make is None:
        raise NoRule("there is no rule for it")
    operator = make(call)
    if not call.cut and not (isinstance(operator, Local) and operator.draws):
        raise NothingCut
    if isinstance(operator, Local):
        return _local(call, operator)
    if isinstance(operator, Summed):
        return _summed(call, operator)
    raise NoRule("there is no rule for it")


def _local(call: Call, operator: Local) -> Placed:
    if call.cut:
        return on_blocks(call, operator, *_best(call, operator.needs, call.result.shape))
    return on_blocks(call, operator, None, [None] * len(call.tensors))


def on_blocks(call: Call, operator: Local, target: Layout | None, wants: Sequence[Want]) -> Placed:
    """A local operator on this worker's block of its output, or on all of it."""
    block = Box.of_shape(call.result.shape) if target is None else call.block(target)

    def run(*given: Any) -> Any:
        return operator.run(*given[:1], block, *given[1:]) if operator.draws else operator.run(block, *given)

    if target is None:
        return Placed(Replicated(), run, wants, operator.draws)
    made = call.unless_empty(Reaching(plain(run, call.tensors, wants)), *[target] * len(call.results))
    return Placed(Cut(target), _detached(made, operator.without_gradient), wants, operator.draws)


def _detached(run: LocalFunction, which: Collection[int]) -> LocalFunction:
    """A function of tensors of which some get no gradient; otherwise workers would reach all adjoints, for one another."""
    if not which:
        return run
    return lambda *given: run(*(x.detach() if i in which else x for i, x in enumerate(given)))


def _summed(call: Call, operator: Summed) -> Placed:
    target, wants = _best(call, operator.needs, operator.space)
    workers, block = call.workers, call.block(target)
    total = applied(AllSum(workers.transport, workers.team, call.name, workers.team))

    def run(*given: Any) -> Any:
        made = operator.result(*(total(part) for part in operator.partial(block, *given)))
        return made if len(call.results) > 1 else made[0]

    return Placed(Replicated(), plain(run, call.tensors, wants), wants)


def _best(call: Call, needs: Needs, shape: Shape) -> tuple[Layout, list[Want]]:
    """The layout of an output, or of what is cut into boxes, that costs least, and what it needs of each tensor."""
    problem: Exception = NothingCut()
    for target in sorted(_targets(call, shape), key=lambda target: _cost(call, needs, target)):
        try:
            found = needs_of_blocks(needs, target)
        except NotOnBoxes as error:
            problem = error
        else:
            return target, [each if x.dim else Replicated() for x, each in zip(call.tensors, found, strict=True)]
    raise problem


def _targets(call: Call, shape: Shape) -> Iterator[Layout]:
    """Layouts of a tensor: blocks as those of an input where they have the same extents, else balanced."""
    workers = call.workers
    known = [value.layout for value in call.cut if value.layout is not None and value.dim == len(shape)]
    free = [d for d, n in enumerate(shape) if n > 1]
    for factors in factorisations(workers.size, len(free)):
        if workers.size > MANY and sum(p > 1 for p in factors) > 2:
            continue
        extents = [1] * len(shape)
        for d, p in zip(free, factors, strict=True):
            extents[d] = p
        like = next((layout for layout in known if layout.grid.shape == tuple(extents)), None)
        if like is None:
            yield Layout.balanced(Grid(workers.ranks, tuple(extents)), shape)
        else:
            cuts = [have if have[-1] == n else balanced_cuts(n, len(have) - 1)
                    for have, n in zip(like.cuts, shape, strict=True)]  # fmt: skip
            yield Layout(like.grid, tuple(cuts))


def _cost(call: Call, needs: Needs, target: Layout) -> int:
    """What the first, the middle or the last worker has to read, to fetch and to write, in elements."""
    ranks = call.workers.ranks
    worst = 0
    for rank in {ranks[0], ranks[len(ranks) // 2], ranks[-1]}:
        block = target.block(rank)
        if not block.volume:
            continue
        cost = block.volume
        for value, box in zip(call.tensors, needs(block), strict=True):
            cost += box.volume
            if value.layout is not None:
                cost += box.outside(value.layout.block(rank))
        worst = max(worst, cost)
    return worst
