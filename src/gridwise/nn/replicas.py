"""Do the workers that hold the same block hold the same numbers?

Replicas start equal and get equal gradients, so they stay equal, unless a script changes some of them. Each block is
hashed; the hashes are compared among the holders, one message per team, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import xxhash
from torch import Tensor

from ..comm.transport import Team, Transport
from ..errors import MismatchError, PartitionError, describe
from ..partition import Partition, world
from .agreement import key_of, tell


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
    found = list(_held(model, transport, everyone))
    names = key_of(" ".join(name for name, _, _ in found))
    votes = np.array([names, -names], dtype=np.int64)
    transport.all_max(votes, everyone, "check_replicas")
    if votes[0] != -votes[1]:
        raise MismatchError("check_replicas: the workers hold models whose parameters have different names.")
    by_team: dict[Team, list[tuple[str, int]]] = {}
    for name, value, holders in found:
        if transport.rank in holders and len(holders) > 1:
            by_team.setdefault(holders, []).append((name, _digest(value)))
    differing: list[str] = []
    for team in sorted(by_team):  # one order on all workers, so nobody waits in a circle
        digests = np.array([digest for _, digest in by_team[team]], dtype=np.int64)
        highest, lowest = digests.copy(), -digests
        transport.all_max(highest, team, "check_replicas")
        transport.all_max(lowest, team, "check_replicas")
        for (name, digest), same in zip(by_team[team], highest == -lowest, strict=True):
            if not same:
                differing.append(f"{name} has checksum {digest:016x}")
    votes = np.array([bool(differing)], dtype=np.int64)
    transport.all_max(votes, everyone, "check_replicas")
    if votes[0]:
        told = tell(transport, everyone, "; ".join(differing) or None)
        fix = "build models from one seed on all workers (torch.manual_seed), change parameters alike, load the same state."
        raise PartitionError(describe("check_replicas: workers hold different replicas of a parameter.", told, fix))


def _held(model: torch.nn.Module, transport: Transport, everyone: Team) -> Iterator[tuple[str, Tensor, Team]]:
    """Name, value and holders of every parameter and buffer."""
    for prefix, module in model.named_modules():
        own = [*module.named_parameters(prefix, recurse=False), *module.named_buffers(prefix, recurse=False)]
        for name, value in own:
            spread = getattr(module, "_spreads", {}).get(name.rpartition(".")[2])
            if spread is None:
                yield name, value, everyone
            else:
                yield name, value, spread.sharers(transport.rank) if transport.rank in spread.holders else ()


def _digest(value: Tensor) -> int:
    if value.is_meta:  # without numbers
        return key_of(f"{tuple(value.shape)} {value.dtype}")
    data = value.detach().as_subclass(Tensor).cpu().contiguous().view(-1)
    return xxhash.xxh3_64_intdigest(data.view(torch.uint8).numpy().data) >> 2
