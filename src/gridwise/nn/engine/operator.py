"""Linear operators between workers, and their one bridge to autograd.

An `Operator` moves a local tensor and has an `adjoint`, which is an operator again. `apply` runs it and records one node
whose backward applies the adjoint, by the same road: so gradients of gradients need no code, and every movement that a
backward pass makes is guarded like those of a forward pass.

All workers of an operator enter its backward together. If any of them needs a gradient, the output requires grad on all:
on a worker whose own input does not, an empty *anchor* tensor makes autograd record the node. Every node saves a tensor,
an empty one, and looks at it before it sends anything: so `torch.utils.checkpoint`, which computes a part of a model again
when backward first needs something saved there, does that at the same place on all workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...comm.graph_breaks import capturing
from ...comm.transports.base import Team, Transport
from .agreement import agree_call, is_on


class Ticket(NamedTuple):
    """Which operator, which call of it, and how often it has been differentiated: what the workers compare."""

    key: int
    call: int
    depth: int = 0

    @property
    def number(self) -> int:
        return (self.key + 0x9E3779B97F4A7C15 * (2 * self.call + 1) + 0xC2B2AE3D27D4EB4F * self.depth) & (2**62 - 1)

    def called_again(self) -> Ticket:
        return Ticket(self.key, self.call + 1)

    def differentiated(self) -> Ticket:
        return Ticket(self.key, self.call, self.depth + 1)


class Operator(ABC):
    """A linear map from the tensors that workers have to the tensors that they get."""

    def __init__(self, transport: Transport, team: Team, name: str) -> None:
        self.transport = transport
        self.team = team
        self.name = name

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Move `x`, without autograd; the result never shares memory with it."""

    @property
    @abstractmethod
    def adjoint(self) -> Operator:
        """The transposed operator."""


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor | None, operator: Operator, ticket: Ticket) -> Tensor:
        ctx.operator, ctx.ticket, ctx.shape = operator, ticket, x.shape
        prepare(ctx)
        return operator(plain(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        operator, ticket = ctx.operator.adjoint, ctx.ticket.differentiated()
        meet(ctx, operator.transport, operator.team, operator.name, ticket)
        x = apply(gradient, operator, ticket, torch.is_grad_enabled())
        if x.shape != ctx.shape:  # a worker that holds no part of x may have brought a tensor of any shape
            x = x.sum().expand(ctx.shape)
        return x, None, None, None


class _Noted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        prepare(ctx)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _ = ctx.saved_tensors
        return gradient


def noted(x: Tensor) -> Tensor:
    """`x`, by a node that saves a tensor: for what a worker makes of nothing where the others' functions save theirs.

    `torch.utils.checkpoint` computes again up to the last tensor that was saved; that must be in the same layer everywhere.
    """
    return _Noted.apply(x)


_NOTHING = torch.empty(0, device="cpu")


def prepare(ctx: Any, *saved: Tensor | None) -> None:
    """Let a node of autograd be able to `meet` the other workers in backward; `saved` is what it saves besides."""
    ctx.guarded = is_on()
    if (breaks := capturing()) is not None:
        breaks.node()
    ctx.save_for_backward(*saved, _NOTHING)


def meet(ctx: Any, transport: Transport, team: Team, name: str, ticket: Ticket) -> tuple[Any, ...]:
    """Agree that all workers of a node have entered its backward; what it has saved.

    Inside a model nothing is agreed here: where the cotangent entered it, that was done for all of it.
    """
    *saved, _ = ctx.saved_tensors
    if ctx.guarded and is_on():
        agree_call(transport, team, name, ticket.number, False, None)
    return tuple(saved)


def anchor_unless(known: bool) -> Tensor | None:
    """A tensor that makes autograd record a node, unless that is `known` to record anyway."""
    return None if known else torch.empty(0, requires_grad=True, device="cpu")


def apply(x: Tensor, operator: Operator, ticket: Ticket, records: bool) -> Tensor:
    """``operator(x)``, recorded by autograd on all its workers if `records`."""
    if not records:
        return operator(plain(x.detach()))
    return _Applied.apply(x, anchor_unless(x.requires_grad), operator, ticket)


def is_dense(x: Tensor) -> bool:
    """Whether torch says `strided`; of tensors too that carry a `layout` of their own."""
    return bool(torch._C.TensorBase.layout.__get__(x) == torch.strided)  # type: ignore[attr-defined]


def plain(x: Tensor) -> Tensor:
    """`x` with lazy conjugation and negation carried out: memory that means what it says can be sent."""
    return x.resolve_conj().resolve_neg() if x.is_complex() or x.is_neg() else x
