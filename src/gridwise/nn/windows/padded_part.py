"""A worker's part in padding: a constant fills the margins of the fetched box, and circular padding wraps the route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Layout
from ...operators.call import OperatorCall
from ...operators.on_grids import needs_of_blocks
from ...operators.windows.padding import CircularRows, rows_of
from .local_part import LocalPart


def padded_part(
    call: OperatorCall, transport: Transport, team: Team, name: str, source: Layout, target: Layout
) -> LocalPart:
    """The part of this worker. What was fetched may be the output itself."""
    made = rows_of(call)
    margins, fill = None, 0.0
    run: Callable[[Tensor], Tensor] = partial(made.run, target.block(transport.rank))
    if isinstance(made, CircularRows):
        back = tuple(-n for n in made.before)
        (needs,) = needs_of_blocks(lambda box: [box.shifted(back)], target)
        changed = tuple(a != b for a, b in zip(source.global_shape, target.global_shape, strict=True))
        needs, run = replace(needs, wrap=changed), _as_it_is
    else:
        (needs,) = needs_of_blocks(made.needs, target)
        if made.mode == "constant" and any(n > 0 for pair in made.around for n in pair):
            rows = made.rows(target.block(transport.rank))
            margins, fill, run = tuple((line.before, line.after) for line in rows), made.value, _as_it_is
    return LocalPart.fetching(transport, team, name, needs, run, source, target, margins, fill, fresh_gradients=False)


def _as_it_is(x: Tensor) -> Tensor:
    return x
