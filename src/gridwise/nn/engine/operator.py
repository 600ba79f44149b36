"""Linear operators between workers, and their one bridge to autograd.

An `Operator` moves a local tensor and has an `adjoint`, itself an operator. `apply` runs it and records one node whose
backward calls `apply` with the adjoint: so gradients of gradients need no code, and every movement in a backward pass
is guarded like those of a forward pass.

All workers of an operator enter its backward together. If any of them needs a gradient, the output requires grad on all:
on a worker whose own input does not, an empty *anchor* tensor makes autograd record the node. Every node saves an empty
tensor and unpacks it before it sends anything: `torch.utils.checkpoint` recomputes a part of a model when backward
first unpacks a tensor saved there, and so does it at the same point on all workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...comm.graph_breaks import capturing
from ...comm.transports.base import Team, Transport
from .agreement import agree_call, is_on


class CallId(NamedTuple):
    """Which operator, which call of it, and how often it has been differentiated: what the workers compare."""

    key: int
    call: int
    depth: int = 0

    @property
    def number(self) -> int:
        return (self.key + 0x9E3779B97F4A7C15 * (2 * self.call + 1) + 0xC2B2AE3D27D4EB4F * self.depth) & (2**62 - 1)

    def called_again(self) -> CallId:
        return CallId(self.key, self.call + 1)

    def differentiated(self) -> CallId:
        return CallId(self.key, self.call, self.depth + 1)


class Operator(ABC):
    """A linear map from the tensors that workers have to the tensors that they get."""

    def __init__(self, transport: Transport, team: Team, name: str) -> None:
        self.transport = transport
        self.team = team
        self.name = name

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Move `x`, without autograd; the result shares no memory with it, unless a subclass says so."""

    @property
    @abstractmethod
    def adjoint(self) -> Operator:
        """The transposed operator."""


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor | None, operator: Operator, call_id: CallId) -> Tensor:
        ctx.operator, ctx.call_id, ctx.shape = operator, call_id, x.shape
        prepare(ctx)
        return operator(plain(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        operator, call_id = ctx.operator.adjoint, ctx.call_id.differentiated()
        meet(ctx, operator.transport, operator.team, operator.name, call_id)
        x = apply(gradient, operator, call_id, torch.is_grad_enabled())
        if x.shape != ctx.shape:  # a worker that holds no part of x may have passed a tensor of any shape
            x = x.sum().expand(ctx.shape)
        return x, None, None, None


class _SavingNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        prepare(ctx)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _ = ctx.saved_tensors
        return gradient


def saving_node(x: Tensor) -> Tensor:
    """`x`, through a node that saves a tensor: for a worker without outputs, where the others' functions save theirs.

    `torch.utils.checkpoint` recomputes up to the last saved tensor, which must be in the same layer on all workers.
    """
    return _SavingNode.apply(x)


_NOTHING = torch.empty(0, device="cpu")


def prepare(ctx: Any, *saved: Tensor | None) -> None:
    """Prepare an autograd node to `meet` the other workers in backward; `saved` are the tensors that it needs there."""
    ctx.guarded = is_on()
    if (capture := capturing()) is not None:
        capture.note_node()
    ctx.save_for_backward(*saved, _NOTHING)


def meet(ctx: Any, transport: Transport, team: Team, name: str, call_id: CallId) -> tuple[Any, ...]:
    """Agree that all workers of a node have entered its backward; returns the tensors that it saved.

    Inside a model nothing is agreed here: the agreement where the cotangent entered the model covers all of it.
    """
    *saved, _ = ctx.saved_tensors
    if ctx.guarded and is_on():
        agree_call(transport, team, name, call_id.number, False, None)
    return tuple(saved)


def anchor_unless(known: bool) -> Tensor | None:
    """A tensor that makes autograd record a node; None if the node is `known` to be recorded anyway."""
    return None if known else torch.empty(0, requires_grad=True, device="cpu")


def apply(x: Tensor, operator: Operator, call_id: CallId, records: bool) -> Tensor:
    """``operator(x)``, recorded by autograd on all its workers if `records`."""
    if not records:
        return operator(plain(x.detach()))
    return _Applied.apply(x, anchor_unless(x.requires_grad), operator, call_id)


def plain(x: Tensor) -> Tensor:
    """`x` with lazy conjugation and negation carried out: its memory can be sent as it is."""
    return x.resolve_conj().resolve_neg() if x.is_complex() or x.is_neg() else x
