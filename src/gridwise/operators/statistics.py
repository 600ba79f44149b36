"""Mean and variance, collected over boxes, and torch's kernels that compute them and normalise by them.

    of a box      n_k, mean_k, M_k = sum (x - mean_k)^2       in the precision of x (float32 for half precision)
    of two        mean = mean_1 + (n_2 / n) (mean_2 - mean_1)
                  M = M_1 + M_2 + (n_1 n_2 / n) (mean_2 - mean_1)^2       in float64

never E[x^2] - E[x]^2, which cancels. The gradient is dx = dmean / n + 2 dvar (x - mean) / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..grid import Box, Shape
from .formats import memory_format_of, wide
from .on_boxes import Collecting


class CollectedMoments(Collecting):
    """Mean and uncorrected variance over some dims, of sets of elements.

    Results have the shape of the other dims. If the last of these has runs of rows that belong to one set, it is
    shorter by their length.

    Parameters
    ----------
    shape : the shape of the tensor
    dtype : its dtype; results have it too, or float32 for half precision
    dims : the dims over which statistics are taken
    run : how many consecutive rows of the last other dim are in one set
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, dims: Sequence[int], run: int = 1) -> None:
        self.space, self.run, self.flops = shape, run, 4.0
        self.dims = tuple(dims)
        self.kept = tuple(d for d in range(len(shape)) if d not in dims)
        self.shape = tuple(shape[d] for d in self.kept)
        self.count = prod(shape[d] for d in dims) * run
        self.dtype = wide(torch.empty(0, dtype=dtype, device="cpu")).dtype

    def needs(self, box: Box) -> list[Box]:
        return [box]

    def add(self, state: Any, box: Box, *tensors: Tensor) -> Tensor:
        """The state: for each row the number of elements, their mean and the sum of squared distances from it."""
        (x,) = tensors
        if state is None:
            state = torch.zeros((3, *self.shape), dtype=torch.float64, device=x.device)
        mean, var = moments_over(wide(x.detach()), self.dims)
        count = prod(x.shape[d] for d in self.dims)
        have, middle, squares = state[(slice(None), *self._rows_of(box))]
        total, apart = have + count, mean.double() - middle
        squares += var.double() * count + apart.square() * (have * count / total)
        middle += apart * (count / total)
        have += count
        return state

    def finish(self, state: Any) -> tuple[Tensor, ...]:
        count, mean, squares = state
        var = squares / count
        if self.run > 1:
            mean, var = (each.unflatten(-1, (-1, self.run)) for each in (mean, var))
            whole = mean.mean(-1)
            mean, var = whole, (var + (mean - whole.unsqueeze(-1)).square()).mean(-1)
        return mean.to(self.dtype), var.to(self.dtype)

    def gradients(
        self, state: Any, box: Box, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        (x,), (of_mean, of_var) = tensors, cotangents
        if of_mean is None and of_var is None:
            return [None]
        mean = self._on(box, self.finish(state)[0])
        shift = torch.zeros_like(mean) if of_mean is None else self._on(box, of_mean) / self.count
        if of_var is None:
            return [self._along(shift, x.shape).expand(x.shape).to(x.dtype)]
        slope = self._on(box, of_var) * (2 / self.count)
        values = wide(x.detach())
        if self.kept == (1,) and x.dim() > 2:
            return [by_statistics(values, slope, shift, mean, torch.ones_like(mean), 0.0).to(x.dtype)]
        apart = values - self._along(mean, x.shape)
        return [apart.mul_(self._along(slope, x.shape)).add_(self._along(shift, x.shape)).to(x.dtype)]

    def _rows_of(self, box: Box) -> tuple[slice, ...]:
        return tuple(slice(box.start[d], box.stop[d]) for d in self.kept)

    def _on(self, box: Box, results: Tensor) -> Tensor:
        """For each row of a box, the value of its set."""
        if self.run > 1:
            results = results.repeat_interleave(self.run, -1)
        return results[self._rows_of(box)]

    def _along(self, rows: Tensor, shape: Shape) -> Tensor:
        return rows.reshape([n if d in self.kept else 1 for d, n in enumerate(shape)])


def moments_over(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and uncorrected variance over some dims, by the kernel of group norm if the last of them are the last dims.

    It makes one numerically stable pass, many times faster than that of `torch.var_mean` on a CPU.
    """
    lead = x.dim()
    while lead - 1 in dims:
        lead -= 1
    if lead == x.dim() or x.is_complex():
        mean = x.mean(tuple(dims), keepdim=True)
        var = (x - mean).abs().square().mean(tuple(dims))
        return mean.reshape(var.shape), var
    rows, elements = prod(x.shape[:lead]), prod(x.shape[lead:])
    # for channels last the kernel would compute E[x^2] - E[x]^2
    _, *found = torch.native_group_norm(x.contiguous(), None, None, 1, rows, elements, rows, 0.0)
    mean, scale = (each.view(x.shape[:lead]) for each in found)
    var = scale**-2
    others = [d for d in dims if d < lead and x.shape[d] > 1]
    if others:
        whole = mean.mean(others, keepdim=True)
        mean, var = whole, (var + (mean - whole) ** 2).mean(others, keepdim=True)
    kept = [n for d, n in enumerate(x.shape) if d not in dims]
    return mean.reshape(kept), var.reshape(kept)


def by_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """The rows of ``(n, row, ...)`` normalised by a mean and variance each, scaled and shifted; without gradient."""
    if not x.numel():  # torch's CUDA kernels fail on this, or end the process
        return torch.empty_like(x)
    if x.device.type == "cpu" and x.stride(-1) == 1 and not x.is_contiguous():
        x = x.contiguous()  # torch's loop over a part of a tensor takes five times as long as a copy
    return torch.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]


def normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """The same, as a function of all tensors: the statistics have gradients too."""
    rows = (None if each is None else each.contiguous() for each in (weight, bias, mean, var))
    made: Tensor = _Normalised.apply(x, *rows, eps)  # torch's backward on a CPU reads any of them as if contiguous
    return made


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps = eps
        return by_statistics(x, weight, bias, mean, var, eps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        dy, x = laid_out_alike(dy, x)
        weight = torch.ones_like(mean) if weight is None else weight  # CUDA's kernel asks for one,
        wanted = [ctx.needs_input_grad[0], True, True]  # and for both sums
        unused = mean.new_empty(0)
        dx, aligned, plain = torch.ops.aten.native_batch_norm_backward.default(
            dy, x, weight, mean, var, unused, unused, False, ctx.eps, wanted
        )
        r = (var + ctx.eps).rsqrt()
        slope = weight * r
        found = dx, aligned, plain, -plain * slope, -0.5 * aligned * slope * r
        return *(each if wanted else None for each, wanted in zip(found, ctx.needs_input_grad[:5], strict=True)), None


def laid_out_alike(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the memory format of `x`: torch's CPU kernel reads one as if it had the format of the other.

    That happens silently where a dim of one element lets a tensor pass for channels last (torch 2.13).
    """
    x = x.contiguous(memory_format=memory_format_of(x))
    return dy.contiguous(memory_format=memory_format_of(x)), x
