"""A worker's part in padding: a constant fills the margins of the fetched box, and circular padding wraps the route."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Box, Layout
from ...operators.call import OperatorCall
from ...operators.on_grids import needs_of_blocks
from ...operators.windows.padding import CircularRows, rows_of
from .local_part import LocalPart


def padded_part(
    call: OperatorCall, transport: Transport, team: Team, name: str, source: Layout, target: Layout
) -> LocalPart:
    """The part of this worker. What was fetched may be the output itself."""
    made = rows_of(call)
    margins, fill, run = None, 0.0, made.run
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


def _as_it_is(box: Box, x: Tensor) -> Tensor:
    return x
