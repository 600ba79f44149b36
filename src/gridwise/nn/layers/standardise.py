"""Mean and variance over workers, and the normalisation by them: what batch, layer and group norm have in common.

A tensor ``(n, row, ...)`` has *rows* along dim 1. Each row belongs to a *set*, whose other elements are rows here and on
the workers of a team. With k over the parts of a set, n_k elements each,

    mean = sum_k n_k mean_k / n
    var  = sum_k n_k (var_k + (mean_k - mean)^2) / n            never E[x^2] - E[x]^2, which cancels

    y    = w (x - mean) r + b,                   r = 1 / sqrt(var + eps)
    dx   = r (w dy - m1 - (x - mean) r m2),      m1 = sum(w dy) / n,   m2 = sum(w dy (x - mean) r) / n

Whatever the size of the tensor, backward sends two numbers per set. Forward sends three for every worker of a small team
(n_k / n, mean_k, var_k: all of it, in one message), and one twice in a larger one. The sums are torch's own kernels for
local norms. Under `create_graph` the gradient is taken of the same formulas, written in differentiable operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Box, Layout
from ..engine.copy_and_sum import AllSum
from ..engine.operator import Ticket, anchor_unless, apply, meet, prepare
from ..windows.fetch import memory_format_of

FEW = 32
"""The largest team whose members' statistics go into one message; its size grows with the team."""
MANY = 1 << 14
"""The most sets of all members that go into one."""

SharedValue = Callable[[Tensor], Tensor]
"""What makes a parameter one whose gradient is summed over those who hold it."""


@dataclass
class Sets:
    """Which rows make up a set, and which workers share it."""

    transport: Transport
    team: Team
    """The layer's workers, who enter backward together."""
    name: str
    members: Team
    """The workers among whom the sets are spread."""
    count: int
    """How many elements a set has in all."""
    of_row: Tensor | None = None
    """The set of each row here; None: each row is one."""
    total: int = 0
    """How many sets there are here, where `of_row` is given."""
    run: int = 0
    """How many consecutive rows each set has, if all have the same number; else 0."""
    parts: tuple[int, ...] = ()
    """How many elements of a set each member has, where it is a channel."""
    _counts: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def in_groups(self, block: Box, size: int, channels: int, device: torch.device) -> None:
        """Let the rows be the channels of the samples of a block, and a set be `size` channels of one sample."""
        samples, groups = torch.meshgrid(
            torch.arange(block.shape[0], device="cpu"),
            torch.arange(block.start[1], block.stop[1], device="cpu") // size,
            indexing="ij",
        )
        count = channels // size
        self.of_row = (samples * count + groups).flatten().to(device)
        self.total = block.shape[0] * count
        self.run = size if block.shape[1] == channels and block.volume else 0

    def of_channels(self, layout: Layout) -> Sets:
        """These sets, each of which is a channel of a tensor with that layout."""
        blocks = [layout.block(member) for member in self.members]
        self.parts = tuple(block.volume // max(1, block.shape[1]) for block in blocks)
        return self

    def counts(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The `parts` on a device, as float32 and as int32."""
        if device not in self._counts:
            whole = torch.tensor(self.parts, dtype=torch.int32, device=device)
            self._counts[device] = whole.float(), whole
        return self._counts[device]

    @property
    def merges(self) -> bool:
        """Whether a set may have any rows here."""
        return self.of_row is not None and not self.run

    def fold(self, rows: Tensor) -> Tensor:
        """Sum the rows (last dim) of each set."""
        if self.of_row is None:
            return rows
        if self.run:
            return rows.reshape(*rows.shape[:-1], self.total, self.run).sum(-1)
        return rows.new_zeros(*rows.shape[:-1], self.total).index_add(-1, self.of_row, rows)

    def unfold(self, sets: Tensor) -> Tensor:
        """Give each row the value of its set."""
        return sets if self.of_row is None else sets.index_select(-1, self.of_row)

    @property
    def all_sum(self) -> AllSum:
        return AllSum(self.transport, self.team, self.name, self.members)

    @property
    def adjoint_name(self) -> str:
        return f"the adjoint of {self.name}"

    def summed(self, numbers: Tensor) -> Tensor:
        """The sum over the members of what each has."""
        return numbers if len(self.members) == 1 else self.transport.all_sum(numbers, self.members, self.name)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (not corrected) of every set; no gradient."""
        if self.run:  # all rows of a set as one
            x = x.reshape(len(x), self.total, -1)
        rows = x.shape[1]
        share = x.numel() / max(1, rows) / max(1, self.count)  # of a set, in each of its rows
        sets = rows if self.of_row is None else self.total
        mean, var = row_moments(x.detach()) if x.numel() else (x.new_zeros(rows),) * 2
        if len(self.members) > FEW or len(self.members) * sets > MANY:
            fold, unfold = (self.fold, self.unfold) if self.merges else (_same, _same)
            whole = self.summed(fold(mean * share))
            return whole, self.summed(fold((var + (mean - unfold(whole)) ** 2) * share))
        shares = mean.new_full((len(mean),), share)
        if self.merges:
            shares, mean, var = self._merged(share, mean, var)
        own = torch.stack((shares, mean, var))
        every = self.transport.all_gather(own.view(-1), self.members, self.name)
        parts, means, variances = every.view(len(self.members), *own.shape).unbind(1)
        whole = (parts * means).sum(0)
        return whole, (parts * (variances + (means - whole) ** 2)).sum(0)

    def _merged(self, share: float, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The share, mean and variance of the rows here, put together for each set."""
        total = self.fold(mean.new_full((len(mean),), share))
        safe = total.clamp(min=torch.finfo(total.dtype).tiny)  # of a set without any row here
        middle = self.fold(mean * share) / safe
        return total, middle, self.fold((var + (mean - self.unfold(middle)).square()) * share) / safe


def _same(rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class Normalisation:
    """How one call normalises: over which sets, and how workers meet in its backward.

    With `shared`, the rows are the sets and weight and bias are parameters that all members of a set hold: their
    gradients are returned complete, summed over the members, since backward needs these sums anyway.
    """

    sets: Sets
    eps: float
    ticket: Ticket
    records: bool
    """Whether autograd records it, on all workers of the sets."""
    shared: SharedValue | None = None

    def anchor(self, *tensors: Tensor | None) -> Tensor | None:
        """What lets a worker take part in backward that has no gradient to give."""
        return anchor_unless(not self.records or any(t is not None and t.requires_grad for t in tensors))


class Running(NamedTuple):
    """Running statistics, which follow those of a batch by `momentum`; none where there are no tensors."""

    mean: Tensor | None = None
    var: Tensor | None = None
    momentum: float = 0.0
    is_corrected: bool = True
    """Whether the variance of n elements enters times ``n / (n - 1)``, as torch's does."""


def row_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the rows of ``(n, row, ...)``, by the kernel of group norm: one group for each n and row.

    It makes one careful pass, four times faster than the kernel of batch norm. Its results for each n are merged.
    """
    samples, rows = x.shape[:2]
    x = x.contiguous()  # of channels last it would take E[x^2] - E[x]^2
    elements = x.numel() // (samples * rows)
    _, *found = torch.native_group_norm(x, None, None, samples, rows, elements, rows, 0.0)
    mean, scale = (each.reshape(samples, rows) for each in found)
    var = scale**-2
    if samples == 1:
        return mean[0], var[0]
    whole = mean.mean(0)
    return whole, (var + (mean - whole) ** 2).mean(0)


def by_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """The rows of ``(n, row, ...)`` normalised by a mean and a variance for each, scaled and shifted; no gradient."""
    if not x.numel():  # on which torch's kernels for CUDA fail, or end the process
        return torch.empty_like(x)
    return torch.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]


class Standardised(torch.autograd.Function):
    """Normalise rows by the given statistics of their sets, and scale and shift them by `weight` and `bias` of the row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        anchor: Tensor | None,
        statistics: tuple[Tensor, Tensor],
        how: Normalisation,
    ) -> Tensor:
        mean, var = map(how.sets.unfold, statistics)
        prepare(ctx, x, weight, bias)
        ctx.mean, ctx.var, ctx.how = mean, var, how
        return by_statistics(x, weight, bias, mean, var, how.eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        how: Normalisation = ctx.how
        sets, eps, mean, var = how.sets, how.eps, ctx.mean, ctx.var
        if torch.is_grad_enabled():
            x, weight, bias, _ = ctx.saved_tensors
            return *differentiable(x, weight, bias, dy, how), None, None, None
        x, weight, bias = meet(ctx, sets.transport, sets.team, sets.adjoint_name, how.ticket.differentiated())
        if x.is_cuda and x.numel():
            r = (var + eps).rsqrt()
            plain, aligned, _, _ = torch.batch_norm_backward_reduce(dy, x, mean, r, None, True, False, False)
            aligned = aligned * r
        elif x.numel():
            dy, x = _laid_out_alike(dy, x)
            _, aligned, plain = torch.ops.aten.native_batch_norm_backward.default(
                dy, x, None, mean, var, None, None, False, eps, [False, True, True]
            )
        else:  # which torch's kernel divides by
            aligned = plain = torch.zeros_like(mean)
        sums, slopes = _pulled(how, plain, aligned, weight, var)
        dx = None
        if ctx.needs_input_grad[0]:
            m1, m2, slope = slopes
            dx = by_statistics(x, m2, m1, mean, var, eps)
            dx.addcmul_(dy, slope.view(1, -1, *(1,) * (x.dim() - 2)))
        plain, aligned = sums
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        return dx, aligned if needs_weight else None, plain if needs_bias else None, None, None, None


def _laid_out_alike(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the memory format of `x`: torch's kernel for the CPU reads one as if it lay like the other.

    It does so silently where both might be channels last but for a dim of one element (torch 2.13).
    """
    x = x.contiguous(memory_format=memory_format_of(x))
    return dy.contiguous(memory_format=memory_format_of(x)), x


def _pulled(
    how: Normalisation, plain: Tensor, aligned: Tensor, weight: Tensor | None, var: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The sums of dy and of dy (x - mean) r, for each row; and for each row -r m1, -r m2 and w r.

    The sums are those over all members where parameters are shared, else of this worker.
    """
    sets, shared = how.sets, how.shared is not None
    sums = torch.stack([plain, aligned]).to(var.dtype)
    if shared:
        sums = sets.summed(sums)
    scale = 1.0 if weight is None else weight.detach().as_subclass(Tensor)
    r = (var + how.eps).rsqrt()
    slope = scale * r
    if shared:
        m1, m2 = sums * (slope / -sets.count)
    else:
        m1, m2 = sets.unfold(sets.summed(sets.fold(sums * scale))) * (r / -sets.count)
    return sums, (m1, m2, slope)


def standardised(x: Tensor, weight: Tensor | None, bias: Tensor | None, how: Normalisation) -> Tensor:
    """What `Standardised` computes, statistics included, in differentiable operators: gradients of gradients use it."""
    others = (0, *range(2, x.dim()))
    sets, ticket, shared, records = how.sets, how.ticket, how.shared, torch.is_grad_enabled()

    def whole(rows: Tensor, step: int) -> Tensor:
        own = Ticket(ticket.key + step, ticket.call, ticket.depth)
        return apply(sets.fold(rows), sets.all_sum, own, records) / sets.count

    def along(rows: Tensor) -> Tensor:
        return rows.view(1, -1, *(1,) * (x.dim() - 2))

    apart = x - along(sets.unfold(whole(x.sum(others), 1)))
    var = whole(apart.square().sum(others), 2)
    y = apart * along(sets.unfold((var + how.eps).rsqrt()))
    if weight is not None:
        y = y * along(weight if shared is None else shared(weight))
    if bias is not None:
        y = y + along(bias if shared is None else shared(bias))
    return y


def differentiable(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor, how: Normalisation
) -> list[Tensor | None]:
    """Gradients of x, weight and bias that can be differentiated again: those of `standardised`."""
    source = x if x.requires_grad else x.detach().requires_grad_()  # to take part in the others' adjoints
    y = standardised(source, weight, bias, how)
    wanted = [t for t in (weight, bias) if t is not None and t.requires_grad]
    of_x, *found = torch.autograd.grad(y, [source, *wanted], dy, create_graph=True)
    others = [found.pop(0) if t is not None and t.requires_grad else None for t in (weight, bias)]
    return [of_x if x.requires_grad else None, *others]


def standardise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: tuple[Tensor, Tensor], how: Normalisation
) -> Tensor:
    """Normalise ``x`` by `statistics`."""
    return Standardised.apply(x, weight, bias, how.anchor(x, weight, bias), statistics, how)
