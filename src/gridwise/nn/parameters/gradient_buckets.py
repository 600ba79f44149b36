"""Gradient buckets: one sum for the gradients of many parameters that workers share.

A layer by itself sends a message for its own gradients in every backward pass. A model passes all its shared parameters
through a few nodes at the start of a call, and the layers use what comes out. So autograd adds up what all uses of a
parameter contribute, and each node sums the gradients of its parameters in one message, once they are all there:

    w_1, w_2, ...  ──► node ──► layers ──► loss           backward:  one sum of (g_1, g_2, ...) over the sharers

A large parameter has a node of its own: packing it would cost more than its message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...comm.transports.base import Team
from ..engine.agreement import key_of
from ..engine.layer import Layer
from ..engine.operator import Ticket
from .blocks import Shared, shared_together

LARGE = 1 << 18
"""Bytes from which a parameter travels alone."""
FULL = 1 << 22
"""Bytes at which a parcel of small ones is closed."""


class BucketMember(NamedTuple):
    """Who uses a parameter: it finds it under `name` in `bucketed` while the model runs."""

    holder: torch.nn.Module
    """Whose parameter it is; it may be another tensor at each call."""
    name: str
    operator: Shared
    bucketed: dict[str, Tensor]
    says: str


def bucket_members_of(layers: Sequence[Layer]) -> list[BucketMember]:
    """The layers, for each of their shared parameters that need a gradient."""
    return [
        BucketMember(layer, name, op, layer._bucketed, layer._says)
        for layer in layers
        for name, op in layer._bucket_members()
    ]


@dataclass
class GradientBucket:
    """Parameters of one dtype and the same sharers, whose gradients are summed together."""

    operator: Shared
    key: int
    members: list[BucketMember] = field(default_factory=list)
    bytes: int = 0


def buckets_of(members: Sequence[BucketMember], key: int) -> list[GradientBucket]:
    """How the parameters are put together; alike on all workers. `key` stands for the model: equal ones have their own."""
    buckets: list[GradientBucket] = []
    counts: Counter[Team] = Counter()
    open_buckets: dict[tuple[Team, torch.dtype, torch.device], GradientBucket] = {}
    for member in members:
        value, operator = getattr(member.holder, member.name), member.operator
        kind = operator.team, value.dtype, value.device
        bucket = open_buckets.get(kind)
        if bucket is None or value.nbytes >= LARGE or bucket.bytes + value.nbytes > FULL:
            title = f"{member.name} of {member.says}, and more,"
            own = key_of(f"{key}, bucket {counts[operator.team]} of {operator.team}")
            bucket = GradientBucket(Shared(operator.transport, operator.team, title), own)
            buckets.append(bucket)
            counts[operator.team] += 1
            if value.nbytes < LARGE:
                open_buckets[kind] = bucket
        bucket.members.append(member)
        bucket.bytes += value.nbytes
    return buckets


@contextmanager
def buckets_in_use(buckets: Sequence[GradientBucket], call: int) -> Iterator[None]:
    """Let the members use the parameters that come out of the nodes, while the body runs."""
    if not torch.is_grad_enabled():
        buckets = ()
    try:
        for bucket in buckets:
            values = [getattr(member.holder, member.name) for member in bucket.members]
            out = shared_together(values, bucket.operator, Ticket(bucket.key, call))
            for member, value in zip(bucket.members, out, strict=True):
                member.bucketed[member.name] = value
        yield
    finally:
        for bucket in buckets:
            for member in bucket.members:
                member.bucketed.pop(member.name, None)
