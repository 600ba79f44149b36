"""One sum for the gradients of many layers: a model lends its layers the parameters that their workers share.

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

import torch

from ..comm.transport import Team
from .agreement import key_of
from .layer import Layer
from .operator import Ticket
from .parameter import Shared, shared_together

LARGE = 1 << 18
"""Bytes from which a parameter travels alone."""
FULL = 1 << 22
"""Bytes at which a parcel of small ones is closed."""


@dataclass
class Loan:
    """Parameters of one dtype and the same sharers, whose gradients are summed together."""

    operator: Shared
    key: int
    borrowers: list[tuple[Layer, str]] = field(default_factory=list)
    bytes: int = 0


def loans_of(layers: Sequence[Layer], key: int) -> list[Loan]:
    """How the shared parameters of `layers` that need a gradient are put together; alike on all workers.

    `key` stands for the model: equal ones have loans of their own.
    """
    loans: list[Loan] = []
    counts: Counter[Team] = Counter()
    open_loans: dict[tuple[Team, torch.dtype, torch.device], Loan] = {}
    for layer in layers:
        for name, operator in layer._borrows():
            value = getattr(layer, name)
            kind = operator.team, value.dtype, value.device
            loan = open_loans.get(kind)
            if loan is None or value.nbytes >= LARGE or loan.bytes + value.nbytes > FULL:
                title = f"{name} of {layer._says}, and more,"
                own = key_of(f"{key}, loan {counts[operator.team]} of {operator.team}")
                loan = Loan(Shared(operator.transport, operator.team, title), own)
                loans.append(loan)
                counts[operator.team] += 1
                if value.nbytes < LARGE:
                    open_loans[kind] = loan
            loan.borrowers.append((layer, name))
            loan.bytes += value.nbytes
    return loans


@contextmanager
def lent(loans: Sequence[Loan], call: int) -> Iterator[None]:
    """Let the layers use the parameters that come out of the nodes, while the body runs."""
    if not torch.is_grad_enabled():
        loans = ()
    try:
        for loan in loans:
            values = [getattr(layer, name) for layer, name in loan.borrowers]
            out = shared_together(values, loan.operator, Ticket(loan.key, call))
            for (layer, name), value in zip(loan.borrowers, out, strict=True):
                layer._lent[name] = value
        yield
    finally:
        for loan in loans:
            for layer, name in loan.borrowers:
                layer._lent.pop(name, None)
