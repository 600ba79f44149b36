"""Mean and variance over workers, and the normalisation by them: the code that all norms share.

A tensor ``(n, row, ...)`` has *rows* along dim 1. Each row belongs to a *set*, which may have other rows here and on
the workers of a team. With k counting the parts of a set and n_k their elements,

    mean = sum_k n_k mean_k / n
    var  = sum_k n_k (var_k + (mean_k - mean)^2) / n            never E[x^2] - E[x]^2, which cancels

    y    = w (x - mean) r + b,                   r = 1 / sqrt(var + eps)
    dx   = r (w dy - m1 - (x - mean) r m2),      m1 = sum(w dy) / n,   m2 = sum(w dy (x - mean) r) / n

Whatever the size of the tensor, backward sends two numbers per set. In a small team forward gathers three from every
worker (n_k / n, mean_k, var_k) in one message; in a larger team it sums one number twice. Torch's kernels for norms
compute the local sums. Under `create_graph` the same formulas, in differentiable operators, give the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Box, Layout
from ...operators.statistics import by_statistics, laid_out_alike, moments_over
from ..engine.copy_and_sum import AllSum
from ..engine.operator import CallId, anchor_unless, apply, meet, prepare

FEW = 32
"""The largest team that gathers its statistics in one message, whose size grows with the team."""
MANY = 1 << 14
"""The most sets, added over all members, in one such message."""

ReplicatedValue = Callable[[Tensor], Tensor]
"""Returns a parameter as a tensor whose gradient is summed over the workers that hold it."""


@dataclass
class Sets:
    """Which rows make up each set, and which workers share them."""

    transport: Transport
    team: Team
    """The layer's workers, which enter backward together."""
    name: str
    members: Team
    """The workers over which the sets are spread."""
    count: int
    """The number of elements of a set, over all members."""
    of_row: Tensor | None = None
    """The set of each row of this worker; None if each row is a set."""
    total: int = 0
    """The number of sets, where `of_row` is given."""
    run: int = 0
    """The number of consecutive rows of each set, if it is the same for all; else 0."""
    parts: tuple[int, ...] = ()
    """The number of elements of a set on each member, where sets are channels."""
    _counts: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def in_groups(self, block: Box, size: int, channels: int, device: torch.device) -> None:
        """Define rows as the channels of each sample of a block, and a set as `size` channels of one sample."""
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
        """These sets, after defining each as a channel of a tensor with this layout."""
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
        """Whether sets may differ in their number of rows here, so that rows have to be merged by index."""
        return self.of_row is not None and not self.run

    def fold(self, rows: Tensor) -> Tensor:
        """The sum of the rows (last dim) of each set."""
        if self.of_row is None:
            return rows
        if self.run:
            return rows.reshape(*rows.shape[:-1], self.total, self.run).sum(-1)
        return rows.new_zeros(*rows.shape[:-1], self.total).index_add(-1, self.of_row, rows)

    def unfold(self, sets: Tensor) -> Tensor:
        """For each row the value of its set."""
        return sets if self.of_row is None else sets.index_select(-1, self.of_row)

    @property
    def all_sum(self) -> AllSum:
        return AllSum(self.transport, self.team, self.name, self.members)

    @property
    def adjoint_name(self) -> str:
        return f"the adjoint of {self.name}"

    def summed(self, numbers: Tensor) -> Tensor:
        """The sum of `numbers` over the members."""
        return numbers if len(self.members) == 1 else self.transport.all_sum(numbers, self.members, self.name)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and uncorrected variance of every set, without gradient."""
        if self.run:  # the rows of a set become one
            x = x.reshape(len(x), self.total, -1)
        rows = x.shape[1]
        share = x.numel() / max(1, rows) / max(1, self.count)  # the fraction of a set that is in one row
        sets = rows if self.of_row is None else self.total
        mean, var = moments_over(x.detach(), (0, *range(2, x.dim()))) if x.numel() else (x.new_zeros(rows),) * 2
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
        """Share, mean and variance of each set's rows here."""
        total = self.fold(mean.new_full((len(mean),), share))
        safe = total.clamp(min=torch.finfo(total.dtype).tiny)  # for sets without a row here
        middle = self.fold(mean * share) / safe
        return total, middle, self.fold((var + (mean - self.unfold(middle)).square()) * share) / safe


def _same(rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class Normalisation:
    """How one call normalises: over which sets, and how workers meet in its backward.

    With `shared`, each row is a set, and all its members hold the same weight and bias. Their gradients are returned
    already summed over the members, since backward needs these sums anyway.
    """

    sets: Sets
    eps: float
    call_id: CallId
    records: bool
    """Whether autograd records the call; the same on all workers."""
    shared: ReplicatedValue | None = None

    def anchor(self, *tensors: Tensor | None) -> Tensor | None:
        """A tensor that makes autograd record the node on a worker where none of `tensors` requires grad; or None."""
        return anchor_unless(not self.records or any(t is not None and t.requires_grad for t in tensors))


class Running(NamedTuple):
    """Running statistics, updated by those of each batch with `momentum`; None where they are not tracked."""

    mean: Tensor | None = None
    var: Tensor | None = None
    momentum: float = 0.0
    is_corrected: bool = True
    """Whether the variance of n elements is multiplied by ``n / (n - 1)``, as in torch."""

    @torch.no_grad()
    def become(self, mean: Tensor | None, var: Tensor | None) -> None:
        for own, new in ((self.mean, mean), (self.var, var)):
            if own is not None and new is not None:
                own.copy_(new)


class _NormaliseNode(torch.autograd.Function):
    """Normalise rows by the given statistics of their sets, then scale and shift each by its `weight` and `bias`."""

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
        x, weight, bias = meet(ctx, sets.transport, sets.team, sets.adjoint_name, how.call_id.differentiated())
        if x.is_cuda and x.numel():
            r = (var + eps).rsqrt()
            plain, aligned, _, _ = torch.batch_norm_backward_reduce(dy, x, mean, r, None, True, False, False)
            aligned = aligned * r
        elif x.numel():
            dy, x = laid_out_alike(dy, x)
            _, aligned, plain = torch.ops.aten.native_batch_norm_backward.default(
                dy, x, None, mean, var, None, None, False, eps, [False, True, True]
            )
        else:  # torch's kernel would divide by zero
            aligned = plain = torch.zeros_like(mean)
        sums, slopes = _backward_sums(how, plain, aligned, weight, var)
        dx = None
        if ctx.needs_input_grad[0]:
            m1, m2, slope = slopes
            dx = by_statistics(x, m2, m1, mean, var, eps)
            dx.addcmul_(dy, slope.view(1, -1, *(1,) * (x.dim() - 2)))
        plain, aligned = sums
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        return dx, aligned if needs_weight else None, plain if needs_bias else None, None, None, None


def _backward_sums(
    how: Normalisation, plain: Tensor, aligned: Tensor, weight: Tensor | None, var: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """For each row the sums of dy and of dy (x - mean) r; and -r m1, -r m2 and w r.

    The sums are over all members where parameters are shared, else over this worker's elements.
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


def normalise_differentiably(x: Tensor, weight: Tensor | None, bias: Tensor | None, how: Normalisation) -> Tensor:
    """The result of `_NormaliseNode`, statistics included, in differentiable operators, for gradients of gradients."""
    others = (0, *range(2, x.dim()))
    sets, call_id, shared, records = how.sets, how.call_id, how.shared, torch.is_grad_enabled()

    def whole(rows: Tensor, step: int) -> Tensor:
        own = CallId(call_id.key + step, call_id.call, call_id.depth)
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
    """Gradients of x, weight and bias that can be differentiated again, by way of `normalise_differentiably`."""
    source = x if x.requires_grad else x.detach().requires_grad_()  # to take part in the others' adjoints
    y = normalise_differentiably(source, weight, bias, how)
    wanted = [t for t in (weight, bias) if t is not None and t.requires_grad]
    of_x, *found = torch.autograd.grad(y, [source, *wanted], dy, create_graph=True)
    others = [found.pop(0) if t is not None and t.requires_grad else None for t in (weight, bias)]
    return [of_x if x.requires_grad else None, *others]


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: tuple[Tensor, Tensor], how: Normalisation
) -> Tensor:
    """Normalise `x` by `statistics`."""
    return _NormaliseNode.apply(x, weight, bias, how.anchor(x, weight, bias), statistics, how)
