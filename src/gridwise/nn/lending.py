"""One sum for the gradients of many layers: a model lends its parameters, where workers share them, to those who use them.

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

from ..comm.transport import Team
from .agreement import key_of
from .layer import Layer
from .operator import Ticket
from .parameter import Shared, shared_together

LARGE = 1 << 18
"""Bytes from which a parameter travels alone."""
FULL = 1 << 22
"""Bytes at which a parcel of small ones is closed."""


class Borrower(NamedTuple):
    """Who uses a parameter: it finds it under `name` in `lent` while the model runs."""

    holder: torch.nn.Module
    """Whose parameter it is; it may be another tensor at each call."""
    name: str
    operator: Shared
    lent: dict[str, Tensor]
    says: str


def borrowers_of(layers: Sequence[Layer]) -> list[Borrower]:
    """The layers, for each of their shared parameters that need a gradient."""
    return [Borrower(layer, name, op, layer._lent, layer._says) for layer in layers for name, op in layer._borrows()]


@dataclass
class Loan:
    """Parameters of one dtype and the same sharers, whose gradients are summed together."""

    operator: Shared
    key: int
    borrowers: list[Borrower] = field(default_factory=list)
    bytes: int = 0


def loans_of(borrowers: Sequence[Borrower], key: int) -> list[Loan]:
    """How the parameters are put together; alike on all workers. `key` stands for the model: equal ones have their own."""
    loans: list[Loan] = []
    counts: Counter[Team] = Counter()
    open_loans: dict[tuple[Team, torch.dtype, torch.device], Loan] = {}
    for borrower in borrowers:
        value, operator = getattr(borrower.holder, borrower.name), borrower.operator
        kind = operator.team, value.dtype, value.device
        loan = open_loans.get(kind)
        if loan is None or value.nbytes >= LARGE or loan.bytes + value.nbytes > FULL:
            title = f"{borrower.name} of {borrower.says}, and more,"
            own = key_of(f"{key}, loan {counts[operator.team]} of {operator.team}")
            loan = Loan(Shared(operator.transport, operator.team, title), own)
            loans.append(loan)
            counts[operator.team] += 1
            if value.nbytes < LARGE:
                open_loans[kind] = loan
        loan.borrowers.append(borrower)
        loan.bytes += value.nbytes
    return loans


@contextmanager
def lent(loans: Sequence[Loan], call: int) -> Iterator[None]:
    """Let the borrowers use the parameters that come out of the nodes, while the body runs."""
    if not torch.is_grad_enabled():
        loans = ()
    try:
        for loan in loans:
            values = [getattr(borrower.holder, borrower.name) for borrower in loan.borrowers]
            out = shared_together(values, loan.operator, Ticket(loan.key, call))
            for borrower, value in zip(loan.borrowers, out, strict=True):
                borrower.lent[borrower.name] = value
        yield
    finally:
        for loan in loans:
            for borrower in loan.borrowers:
                borrower.lent.pop(borrower.name, None)
