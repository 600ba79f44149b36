"""Agreement: do all workers call the same operator, and has the input of any of them changed?

Each worker sees only its own shape. Per call, one all-reduce of five integers over the operator's workers (the maximum of
``[h, -h, p, -p, problem]``, where h stands for the operator, the direction and the call, and p for the plan) answers
three questions at once:

    do all make the same call?    max(h) == -max(-h), else all raise `MismatchError`
    do all have the same plan?    max(p) == -max(-p), and not 0, else all plan anew, together
    is any input bad?             then all raise the same `PartitionError`, before anything is sent

Where a data loader feeds the workers, h also covers the batch that it returned last (`drawn_batches`).

Planning anew takes a second all-reduce, of ``2 sum(p_d)`` integers and a few more, with p_d blocks along dim d: each
worker writes its extent, and minus it, at its place along each dim. Afterwards all workers hold the same cuts, or see
the same disagreement. Only the text of an error takes memory proportional to the number of workers.

`agreement(False)`, or `GRIDWISE_AGREEMENT=off`, skips the first all-reduce, for programs whose workers are known to
agree: all make the same calls, and blocks change on all workers or on none. What that saves is in benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...comm.settings import is_on as is_set
from ...comm.supervision.matching_calls import UNREAD, raise_mismatch, raise_unread
from ...comm.supervision.matching_calls import gather_lines as gather_lines
from ...comm.supervision.matching_calls import key_of as key_of
from ...comm.transports.base import Team, Transport
from ...errors import PartitionError
from ...grid import Grid, Layout, cuts_from_extents
from .switch import Switch

NOTHING = np.iinfo(np.int64).min
DTYPES = sorted((d for d in vars(torch).values() if isinstance(d, torch.dtype)), key=str)
Places = tuple[int, int, int, int, int]
"""Positions in a ballot: dtype, device, "needs a gradient", "does not record" and "on a CUDA device"."""

_switch = Switch(is_set("GRIDWISE_AGREEMENT", "on"))


def agreement(enabled: bool) -> AbstractContextManager[None]:
    """Switch the per-call agreement on or off, on all workers alike, while the body runs.

    Parameters
    ----------
    enabled : whether workers agree before each call

    Examples
    --------
    >>> with gridwise.agreement(False):
    ...     pass  # training steps whose shapes are known to agree
    """
    return _switch.to(enabled)


def is_on() -> bool:
    return _switch.value


def agree_call(transport: Transport, team: Team, what: str, key: int, changed: bool, problem: str | None) -> bool:
    """Whether any worker's input changed; raises like `agree_plan`."""
    return not agree_plan(transport, team, what, key, 0 if changed else 1, problem)


def agree_plan(transport: Transport, team: Team, what: str, key: int, plan: int, problem: str | None) -> int:
    """The number of the plan that all workers would use; 0 if they differ or one has none.

    Raises on all workers if they make different calls or one has a problem.
    """
    if not _switch.value or len(team) == 1:
        if problem is not None:
            raise PartitionError(f"{what}: {problem}")
        return plan
    vote, unread = key, None
    if transport.drawn_batches:
        batches, unread = transport.drawn_batches.of(team)
        vote ^= batches
    trouble = UNREAD if unread is not None else int(problem is not None)
    votes = np.array([vote, -vote, plan, -plan, trouble], dtype=np.int64)
    transport.all_max(votes, team, what)
    high, low, most, least, refused = votes.tolist()
    if high != -low:
        raise_mismatch(transport, team, what, key)
    if refused == UNREAD:
        raise_unread(transport, team, what, unread)
    if refused:
        raise PartitionError(f"{what} got an input that it cannot take.", gather_lines(transport, team, problem))
    return most if most == -least else 0


def agree_common(transport: Transport, team: Team, what: str, candidates: Sequence[int]) -> int:
    """The largest positive number that all workers have at the same position of their lists; 0 if there is none."""
    ballot = Ballot()
    places = [ballot.equal(number) for number in candidates]
    ballot.count(transport, team, what)
    return max(ballot.read(place) or 0 for place in places)


def agree_unbatched(transport: Transport, team: Team, what: str, unbatched: bool | None) -> bool:
    """Whether the input has no batch dim, agreed by all workers; those that hold no part of it pass None."""
    ballot = Ballot()
    place = ballot.equal(None if unbatched is None else int(unbatched))
    ballot.count(transport, team, what)
    agreed = ballot.read(place)
    if agreed is None:
        raise PartitionError(f"{what}: some workers have a batch dim and others have none.")
    return bool(agreed)


class Structure(NamedTuple):
    """The structure of an input: on this worker (`of`), or agreed by all (`agree_layout`, `agree_same`)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    device: torch.device
    records: bool
    """Whether autograd records here, that is, outside no_grad and inference_mode."""

    @classmethod
    def of(cls, x: Tensor) -> Structure:
        records = torch.is_grad_enabled()
        return cls(tuple(x.shape), x.dtype, x.requires_grad and records, x.device, records)

    def convert(self, x: Tensor) -> Tensor:
        """`x` in this dtype and on this device: a worker that holds no part may pass a tensor of any other."""
        return x if x.dtype == self.dtype and x.device == self.device else x.to(self.device, self.dtype)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        where = "" if self.device.type == "cpu" else f" on {self.device}"
        needs = ", requires grad" if self.requires_grad else ""
        return f"shape {self.shape}, {dtype}{where}{needs}{'' if self.records else ', no_grad'}"


class Ballot:
    """Values that a team compares, and flags that it combines, in one all-reduce."""

    def __init__(self) -> None:
        self._values: list[int] = []

    def equal(self, value: int | None) -> int:
        """Add a value that must be equal on all workers that have one; returns the position to `read`."""
        self._values += [NOTHING, NOTHING] if value is None else [value, -value]
        return len(self._values) - 2

    def any(self, flag: bool) -> int:
        self._values += [int(flag), NOTHING]
        return len(self._values) - 2

    def count(self, transport: Transport, team: Team, what: str) -> None:
        self._array = np.array(self._values, dtype=np.int64)
        transport.all_max(self._array, team, what)

    def read(self, place: int) -> int | None:
        """The agreed value; None if the workers differ or none has one."""
        high, low = int(self._array[place]), int(self._array[place + 1])
        return high if high != NOTHING and (low == NOTHING or high == -low) else None


def agree_layout(
    transport: Transport, team: Team, what: str, grid: Grid, x: Tensor, whole: Sequence[int] = ()
) -> tuple[Layout, Structure]:
    """The layout of a tensor whose blocks the workers of `grid` hold, and its structure, the same on the whole team.

    Along the dims in `whole` every worker must hold the full extent; the layout cuts it evenly.
    """
    mine = Structure.of(x)
    declared = transport.declared_layout(grid, mine.shape, whole, what, team)
    active = transport.rank in grid
    index = grid.index_of(transport.rank) if active else ()
    ballot = Ballot()
    common = _vote_common(ballot, mine, active)
    fits = ballot.any(active and len(mine.shape) != grid.dim)
    slots: list[list[int]] = []
    for d, places in enumerate(grid.shape):
        extent = mine.shape[d] if active and len(mine.shape) == grid.dim else None
        if d in whole:
            slots.append([ballot.equal(extent)])
        else:
            slots.append([ballot.equal(extent if active and index[d] == i else None) for i in range(places)])
    ballot.count(transport, team, what)
    extents = [[ballot.read(slot) for slot in line] for line in slots]
    if ballot.read(fits):
        asked = f"{what} needs tensors of {grid.dim} dims, one for each axis of the grid {grid.shape}."
        _refuse(transport, team, asked, mine, active)
    if declared is not None and ballot.read(common[0]) is None:  # in a plan, only workers that hold it know its dtype
        return declared, mine
    agreed = _read_common(ballot, common, transport, team, what, mine, active)
    if declared is not None:
        return declared, agreed
    if any(extent is None for line in extents for extent in line):
        asked = (
            f"{what} needs blocks that form a grid: workers at the same place along an axis share that dim's extent."
        )
        _refuse(transport, team, asked, mine, active, index)
    known = [[extent or 0 for extent in line] for line in extents]
    full = tuple(line[0] if d in whole else sum(line) for d, line in enumerate(known))
    balanced = Layout.balanced(grid, full)
    cuts = tuple(balanced.cuts[d] if d in whole else cuts_from_extents(line) for d, line in enumerate(known))
    return Layout(grid, cuts), agreed


def agree_same(
    transport: Transport, team: Team, what: str, x: Tensor, groups: Sequence[tuple[Team, bool]]
) -> tuple[list[tuple[int, ...]], Structure]:
    """For each of this worker's groups, the shape that its holders share; and the structure that the team shares.

    A group is its workers and whether this one holds a tensor there (the others learn the shape). Groups are handled in
    the given order, which must be the same on all members of a group.
    """
    mine = Structure.of(x)
    shapes, disagree = [], False
    for members, holds in groups:
        ballot = Ballot()
        ndim = ballot.equal(len(mine.shape) if holds else None)
        slots = [ballot.equal(mine.shape[d] if holds and d < len(mine.shape) else None) for d in range(64)]
        ballot.count(transport, members, what)
        dims = ballot.read(ndim)
        extents = [ballot.read(slot) for slot in slots[: dims or 0]]
        disagree |= dims is None or None in extents
        shapes.append(tuple(extent or 0 for extent in extents))
    holds_any = any(holds for _, holds in groups)
    ballot = Ballot()
    common = _vote_common(ballot, mine, holds_any)
    differ = ballot.any(disagree)
    ballot.count(transport, team, what)
    if ballot.read(differ):
        _refuse(transport, team, f"{what} needs tensors of one shape from the workers it combines.", mine, holds_any)
    return shapes, _read_common(ballot, common, transport, team, what, mine, holds_any)


def _vote_common(ballot: Ballot, mine: Structure, holds: bool) -> Places:
    kind = mine.device.type
    return (
        ballot.equal(DTYPES.index(mine.dtype) if holds else None),
        ballot.equal(key_of(kind) if holds else None),
        ballot.any(mine.requires_grad),
        ballot.any(not mine.records),
        ballot.any(holds and kind == "cuda"),
    )


def _read_common(
    ballot: Ballot,
    places: Places,
    transport: Transport,
    team: Team,
    what: str,
    mine: Structure,
    holds: bool,
) -> Structure:
    dtype, device, wants, silent, cuda = (ballot.read(place) for place in places)
    if dtype is None:
        _refuse(transport, team, f"{what} needs tensors of one dtype on all workers.", mine, holds)
    if device is None:
        _refuse(transport, team, f"{what} needs tensors on one kind of device on all workers.", mine, holds)
    if device == key_of("meta") and len(team) > 1 and not transport.carries_meta:
        raise PartitionError(
            f"{what}: tensors on the meta device have no numbers that could be sent.\n  fix: give it tensors with numbers; "
            "gridwise.plan runs models without."
        )
    if wants and silent:
        asked = f"{what}: some workers need a gradient while autograd is off on others (no_grad, inference_mode)."
        _refuse(transport, team, asked, mine, True)
    assert dtype is not None
    where = mine.device
    if device != key_of(where.type):  # this worker holds no part and passed a tensor on another device
        plain = torch.device("meta" if device == key_of("meta") else "cpu")
        where = torch.device("cuda", torch.cuda.current_device()) if cuda else plain
    return Structure(mine.shape, DTYPES[dtype], bool(wants), where, mine.records)


def _refuse(
    transport: Transport, team: Team, asked: str, mine: Structure, holds: bool, index: Sequence[int] = ()
) -> None:
    at = f" at {tuple(index)}" if index else ""
    told = gather_lines(transport, team, f"{mine}{at}" if holds else "holds no part of it")
    raise PartitionError(asked, told, "give all workers blocks of one global tensor before the call.")
