"""What the workers of a layer agree on besides the call (`comm.agreement`): the blocks of a tensor, and its structure.

Each worker sees only its own shape. Planning takes an all-reduce of ``2 sum(p_d)`` integers and a few more, with p_d blocks
along dim d: each worker writes its extent, and minus it, at its place along each dim. Afterwards all workers hold the same
cuts, or see the same disagreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...comm.agreement import Vote as Vote
from ...comm.agreement import agree_call as agree_call
from ...comm.agreement import agree_common as agree_common
from ...comm.agreement import agree_plan as agree_plan
from ...comm.agreement import agreement as agreement
from ...comm.agreement import gather_lines as gather_lines
from ...comm.agreement import is_on as is_on
from ...comm.agreement import key_of as key_of
from ...comm.transports.base import Team, Transport
from ...errors import PartitionError
from ...grid import Grid, Layout, cuts_from_extents

DTYPES = sorted((d for d in vars(torch).values() if isinstance(d, torch.dtype)), key=str)
Positions = tuple[int, int, int, int, int]
"""Positions in a vote: dtype, device, "needs a gradient", "does not record" and "on a CUDA device"."""


def agree_unbatched(transport: Transport, team: Team, what: str, unbatched: bool | None) -> bool:
    """Whether the input has no batch dim, agreed by all workers; those that hold no part of it pass None."""
    vote = Vote()
    asked = vote.equal(None if unbatched is None else int(unbatched))
    vote.count(transport, team, what)
    agreed = vote.read(asked)
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
        return cls(
            tuple(x.shape), x.dtype, x.requires_grad and torch.is_grad_enabled(), x.device, torch.is_grad_enabled()
        )

    def convert(self, x: Tensor) -> Tensor:
        """`x` in this dtype and on this device: a worker that holds no part may pass a tensor of any other."""
        return x if x.dtype == self.dtype and x.device == self.device else x.to(self.device, self.dtype)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        where = "" if self.device.type == "cpu" else f" on {self.device}"
        needs = ", requires grad" if self.requires_grad else ""
        return f"shape {self.shape}, {dtype}{where}{needs}{'' if self.records else ', no_grad'}"


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
    vote = Vote()
    common = _vote_common(vote, mine, active)
    fits = vote.any(active and len(mine.shape) != grid.dim)
    slots: list[list[int]] = []
    for d, places in enumerate(grid.shape):
        extent = mine.shape[d] if active and len(mine.shape) == grid.dim else None
        if d in whole:
            slots.append([vote.equal(extent)])
        else:
            slots.append([vote.equal(extent if active and index[d] == i else None) for i in range(places)])
    vote.count(transport, team, what)
    extents = [[vote.read(slot) for slot in line] for line in slots]
    if vote.read(fits):
        asked = f"{what} needs tensors of {grid.dim} dims, one for each axis of the grid {grid.shape}."
        _refuse(transport, team, asked, mine, active)
    if declared is not None and vote.read(common[0]) is None:  # in a plan, only workers that hold it know its dtype
        return declared, mine
    agreed = _read_common(vote, common, transport, team, what, mine, active)
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
        vote = Vote()
        ndim = vote.equal(len(mine.shape) if holds else None)
        slots = [vote.equal(mine.shape[d] if holds and d < len(mine.shape) else None) for d in range(64)]
        vote.count(transport, members, what)
        dims = vote.read(ndim)
        extents = [vote.read(slot) for slot in slots[: dims or 0]]
        disagree |= dims is None or None in extents
        shapes.append(tuple(extent or 0 for extent in extents))
    holds_any = any(holds for _, holds in groups)
    vote = Vote()
    common = _vote_common(vote, mine, holds_any)
    differ = vote.any(disagree)
    vote.count(transport, team, what)
    if vote.read(differ):
        _refuse(transport, team, f"{what} needs tensors of one shape from the workers it combines.", mine, holds_any)
    return shapes, _read_common(vote, common, transport, team, what, mine, holds_any)


def _vote_common(vote: Vote, mine: Structure, holds: bool) -> Positions:
    kind = mine.device.type
    return (
        vote.equal(DTYPES.index(mine.dtype) if holds else None),
        vote.equal(key_of(kind) if holds else None),
        vote.any(mine.requires_grad),
        vote.any(not mine.records),
        vote.any(holds and kind == "cuda"),
    )


def _read_common(
    vote: Vote,
    common: Positions,
    transport: Transport,
    team: Team,
    what: str,
    mine: Structure,
    holds: bool,
) -> Structure:
    dtype, device, wants, silent, cuda = (vote.read(each) for each in common)
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
