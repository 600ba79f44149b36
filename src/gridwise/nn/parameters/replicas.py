"""Do the workers that hold the same block hold the same numbers?

Replicas start equal and get equal gradients, so they stay equal, unless a script changes some of them. Each block is
hashed, and its holders compare the hashes. `check_replicas` does so on request, for a whole model. Layers and models do
so for their own blocks in the first call, in the first after parameters were loaded or assigned, and in every n-th call
with ``GRIDWISE_CHECK_REPLICAS=n``: only then do they read parameters, and wait for the device that has them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import xxhash
from torch import Tensor

from ...comm.agreement import all_same, differing, gather_lines, key_of
from ...comm.settings import count
from ...comm.transports.base import Team, Transport
from ...deferred_init import is_deferred
from ...errors import MismatchError, PartitionError
from ...grid import Grid
from ...partition import Partition, world
from .blocks import Sharding, is_cut, sharding_over

FIX = "build models from one seed on all workers (torch.manual_seed), change parameters alike, load the same state."

_every = count("GRIDWISE_CHECK_REPLICAS")


def checks_every() -> int:
    """Every how many calls replicas are compared; 0: only in the first, and after loading or assigning."""
    return _every


def is_due(call: int) -> bool:
    """Whether this call of a layer or model has to compare replicas."""
    return _every > 0 and call % _every == 0


class Replica(NamedTuple):
    """A parameter or buffer in blocks, each of which several workers may hold."""

    name: str
    value: Tensor
    sharding: Sharding


def agree_replicas(transport: Transport, team: Team, what: str, replicas: Sequence[Replica]) -> None:
    """Raise on all workers of `team` unless all holders of a block hold the same bits; one all-reduce.

    All workers pass the same values in the same order. Each block has a place in the message for its hash.
    """
    shared = [each for each in replicas if each.sharding.holders.size > each.sharding.layout.grid.size]
    if not shared or len(team) == 1:
        return
    names: list[str] = []
    own: dict[int, int] = {}
    for name, value, sharding in shared:
        if transport.rank in sharding.holders:
            own[len(names) + _place(sharding, transport.rank)] = checksum(value)
        names += [name] * sharding.layout.grid.size
    digests = [own.get(place) for place in range(len(names))]
    if wrong := differing(transport, team, f"the comparison of replicas of {what}", digests):
        mine = [f"{names[place]} has checksum {own[place]:016x}" for place in wrong if place in own]
        told = gather_lines(transport, team, "; ".join(mine) or None)
        differ = ", ".join(f"`{name}`" for name in dict.fromkeys(names[place] for place in wrong))
        raise PartitionError(f"{what}: workers hold different replicas of {differ}.", told, FIX)


def _place(sharding: Sharding, rank: int) -> int:
    """The number of the block that `rank` holds, in the order of the owners."""
    index, grid = sharding.holders.index_of(rank), sharding.layout.grid
    return grid.ranks.index(grid.rank_at([0 if axis is None else index[axis] for axis in sharding.axes]))


def check_replicas(model: torch.nn.Module, P: Partition | None = None) -> None:
    """Raise `PartitionError` on all workers, naming parameters and workers, unless all replicas are equal bit by bit.

    Parameters and buffers are compared. Those of layers that are not distributed count as held by every worker of `P`.

    Parameters
    ----------
    model : the model, on every worker of `P`
    P : the workers that train it; default: the world

    Examples
    --------
    >>> gridwise.check_replicas(torch.nn.Linear(2, 2))
    """
    partition = P or world()
    transport, everyone = partition.transport, partition.team
    found = list(_held(model, Grid.line(everyone)))
    if not all_same(transport, everyone, "check_replicas", " ".join(name for name, _, _ in found)):
        raise MismatchError("check_replicas: the workers hold models whose parameters have different names.")
    agree_replicas(transport, everyone, "check_replicas", found)


def synchronise_replicas(model: torch.nn.Module, P: Partition) -> None:
    """Copy the first worker's parameters and buffers to all workers of `P`, with a warning, if theirs differ.

    Models whose parameters differ in name, shape or dtype are refused.
    """
    try:
        check_replicas(model, P)
        return
    except PartitionError as found:
        error = found
    transport, team, what = P.transport, P.team, "distribute"
    held = dict([*model.named_parameters(), *model.named_buffers()])
    names = [(name, tuple(value.shape), value.dtype) for name, value in held.items()]
    if not all_same(transport, team, what, repr(names)):
        raise error
    for value in held.values():
        if not is_deferred(value) and not value.is_meta and not is_cut(value):
            block = value.detach().clone(memory_format=torch.contiguous_format)
            transport.copy_from(block, team[0], team, what)
            value.data.copy_(block)
    warnings.warn(
        f"distribute: the weights of {type(model).__name__} differ on workers {team}. All take those of worker {team[0]}. Call "
        "torch.manual_seed with one seed on all workers, or load the same state.",
        stacklevel=4,
    )


def _held(model: torch.nn.Module, everyone: Grid) -> Iterator[Replica]:
    """Every parameter and buffer; those that are not in blocks count as whole on every worker."""
    for prefix, module in model.named_modules():
        own = [*module.named_parameters(prefix, recurse=False), *module.named_buffers(prefix, recurse=False)]
        for name, value in own:
            known = getattr(module, "_shardings", {}).get(name.rpartition(".")[2])
            yield Replica(name, value, known or sharding_over(value, everyone))


def checksum(value: Tensor) -> int:
    """A hash of the bits of a tensor; of a meta tensor, of its shape and dtype."""
    if value.is_meta:
        return key_of(f"{tuple(value.shape)} {value.dtype}")
    data = value.detach().as_subclass(Tensor).cpu().contiguous().view(-1)
    return xxhash.xxh3_64_intdigest(data.view(torch.uint8).numpy().data) >> 2
