"""Operators that are recorded as others, which have rules: as torch itself writes them, or as written here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations as chosen
from itertools import combinations_with_replacement as chosen_again
from typing import Any

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ...operators.losses import MEAN, NONE, ctc_terms
from ...operators.random.drawing import last_of
from ...torch_internals.decompositions import decompositions_of
from ...torch_internals.operators import OpOverload

aten = torch.ops.aten

BY_TORCH = (
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "block_diag", "unfold_backward", "_euclidean_dist",
    "_chunk_cat",
)  # fmt: skip
"""Operators that torch has a decomposition for."""


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    y = x.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate)
    return y.reshape(x.shape)


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The next element of the source wherever the mask is true."""
    x, mask = torch.broadcast_tensors(x, mask)
    places = mask.reshape(-1).cumsum(0).sub(1).clamp(0, max(0, source.numel() - 1))
    return torch.where(mask, torch.take(source, places).reshape(x.shape), x) if source.numel() else x.clone()


def multilabel_margin(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Labels end at the first negative one; torch's own decomposition counts those behind it as class 0."""
    scores, labels = (each.reshape(-1, each.shape[-1] if each.dim() else 1) for each in (x, target))
    counts = (labels < 0).cumsum(-1) == 0
    classes = torch.arange(scores.shape[-1], device=x.device)
    is_label = (torch.where(counts, labels, -1).unsqueeze(-1) == classes).any(1)
    margins = 1 - scores.gather(-1, torch.where(counts, labels, 0)).unsqueeze(-1) + scores.unsqueeze(1)
    terms = torch.where(counts.unsqueeze(-1) & ~is_label.unsqueeze(1), margins.relu(), 0).sum((1, 2)) / scores.shape[-1]
    loss = terms.reshape(x.shape[:-1]) if reduction == NONE else terms.mean() if reduction == MEAN else terms.sum()
    return loss, is_label.to(x.dtype).reshape(target.shape)


def _gates(x: Tensor, h: Tensor, weights: Sequence[Any], number: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    of_x, of_h, bias_x, bias_h = weights
    linear = torch.nn.functional.linear
    return linear(x, of_x, bias_x).chunk(number, 1), linear(h, of_h, bias_h).chunk(number, 1)


def lstm_cell(x: Tensor, hx: Sequence[Tensor], *weights: Any) -> tuple[Tensor, Tensor]:
    i, f, g, o = (b + a for a, b in zip(*_gates(x, hx[0], _four(weights), 4), strict=True))
    cell = f.sigmoid() * hx[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def gru_cell(x: Tensor, h: Tensor, *weights: Any) -> Tensor:
    (reset, update, new), others = _gates(x, h, _four(weights), 3)
    new = (new + others[2] * (others[0] + reset).sigmoid()).tanh()
    return (h - new) * (others[1] + update).sigmoid() + new


def _sum_of(x: Tensor, h: Tensor, weights: Sequence[Any]) -> Tensor:
    (of_x,), (of_h,) = _gates(x, h, _four(weights), 1)
    return of_h + of_x


def _four(weights: Sequence[Any]) -> Sequence[Any]:
    """Weights, and biases if there are any."""
    return (*weights, None, None)[:4]


def cov(x: Tensor, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    x = x.reshape(1, -1) if x.dim() < 2 else x
    given = [each for each in (fweights, aweights) if each is not None]
    if not given:
        x = (
            x - x.mean(1, keepdim=True)
            if x.is_floating_point() or x.is_complex()
            else x - x.double().mean(1, keepdim=True)
        )
        return (x @ x.t().conj() / max(0, x.shape[1] - correction)).squeeze()
    weights = given[0] * given[1] if len(given) > 1 else given[0]
    total = weights.sum()
    norm = total - correction * ((weights * aweights).sum() / total if aweights is not None else 1)
    x = x - ((x * weights).sum(1) / total).unsqueeze(1)
    is_wrong = torch.stack([(each < 0).any() for each in given]).any()  # torch refuses such weights
    return (x @ (x * weights).t().conj() / torch.where(is_wrong, torch.nan, norm.clamp_min(0))).squeeze()


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = MEAN,
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """One loss for each sample; targets one after another become rows."""
    x = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    inputs, counts = (torch.as_tensor(each).reshape(-1) for each in (input_lengths, target_lengths))
    if targets.dim() == 1:
        width = targets.shape[0] if isinstance(target_lengths, Tensor) else max(target_lengths, default=0)
        starts = (counts.cumsum(0) - counts).to(targets.device).unsqueeze(1)
        places = starts + torch.arange(width, device=targets.device)
        targets = targets[places.clamp_max(targets.shape[0] - 1)]
    terms = ctc_terms(x, targets, inputs, counts, blank, zero_infinity)
    if reduction == MEAN:
        return (terms / counts.clamp_min(1).to(terms)).mean()
    return terms.reshape(log_probs.shape[1:-1]) if reduction == NONE else terms.sum()


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    places = list((chosen_again if with_replacement else chosen)(range(x.shape[0]), r)) if r else []
    return x[torch.tensor(places, dtype=torch.int64, device=x.device).reshape(-1, r)] if r else x.new_empty(0)


def random_from(x: Tensor, low: int, high: int | None, *, generator: Any = None) -> Tensor:
    """``random_.from``, whose name is not one in Python."""
    y = x.random_(last_of(x.dtype) + 1 - low if high is None else high - low)
    return y.add_(low) if low else y


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, by_frequency: bool = False, mode: int = 0, sparse: bool = False,
    factors: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Any:  # fmt: skip
    """Rows of a table, and their sums or means over bags; ties of largest rows are torch's own business."""
    if mode not in (0, 1):
        return NotImplemented
    bags = offsets.shape[0] - include_last_offset
    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    bag = torch.searchsorted(offsets[:bags], places, right=True) - 1
    rows = torch.embedding(weight, indices, -1, by_frequency, sparse)
    counts = torch.ones_like(indices)
    if padding_idx is not None:
        counts = (indices != padding_idx % max(1, weight.shape[0])).to(indices.dtype)
        rows = torch.where(counts.bool().unsqueeze(1), rows, 0)
    rows = rows if factors is None else rows * factors.unsqueeze(1)
    y = rows.new_zeros(bags, weight.shape[1]).index_add(0, bag, rows)
    sizes = counts.new_zeros(bags).index_add(0, bag, counts)
    return (y / sizes.clamp_min(1).unsqueeze(1) if mode else y), bag, sizes, sizes.new_empty(0)


def sparse(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    raise UnsupportedError(
        f"a sparse tensor, of one of shape {tuple(x.shape)}, has no blocks: what lies where depends on its values.\n"
        "  fix: keep that part of the model dense, or outside of it."
    )


def _statistics(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """The mean, and one over the standard deviation."""
    var, mean = torch.var_mean(x, list(dims), correction=0, keepdim=True)
    return mean, (var + eps).rsqrt()


def native_layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Tensor, ...]:
    statistics = _statistics(x.detach(), [d - len(shape) for d in range(len(shape))], eps)
    return torch.layer_norm(x, shape, weight, bias, eps), *statistics


def native_group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, channels: int, space: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    y = torch.group_norm(x, groups, weight, bias, eps)
    return y, *(each.squeeze(2) for each in _statistics(x.reshape(n, groups, channels // groups * space), [2], eps))


def native_batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    y = torch.batch_norm(x, weight, bias, mean, var, training, momentum, eps, False)
    if not training:
        return y, x.new_empty(0), x.new_empty(0)
    return y, *(each.flatten() for each in _statistics(x.detach(), [d for d in range(x.dim()) if d != 1], eps))


def _without_statistics(x: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    return native_batch_norm(x, weight, bias, None, None, training, momentum, eps)


def _with_update(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    return *native_batch_norm(x, weight, bias, mean, var, True, momentum, eps), x.new_empty(0, dtype=torch.uint8)


SPARSE = [getattr(aten, f"to_sparse{kind}") for kind in ("", "_csr", "_csc", "_bsr", "_bsc")]

OURS: dict[OpOverload, Callable[..., Any]] = {
    aten.native_layer_norm.default: native_layer_norm,
    aten.native_group_norm.default: native_group_norm,
    aten.native_batch_norm.default: native_batch_norm,
    aten._native_batch_norm_legit.default: native_batch_norm,
    aten._native_batch_norm_legit.no_stats: _without_statistics,
    aten._batch_norm_with_update.default: _with_update,
    aten.put.default: put,
    aten.masked_scatter.default: masked_scatter,
    aten.multilabel_margin_loss_forward.default: multilabel_margin,
    aten.lstm_cell.default: lstm_cell,
    aten.gru_cell.default: gru_cell,
    aten.rnn_tanh_cell.default: lambda x, h, *weights: _sum_of(x, h, weights).tanh(),
    aten.rnn_relu_cell.default: lambda x, h, *weights: _sum_of(x, h, weights).relu(),
    aten.cov.default: cov,
    aten.embedding_bag.default: embedding_bag,
    aten.embedding_bag.padding_idx: embedding_bag,
    aten.ctc_loss.Tensor: ctc_loss,
    aten.ctc_loss.IntList: ctc_loss,
    aten.combinations.default: combinations,
    getattr(aten.random_, "from"): random_from,
    **{getattr(packet, name): sparse for packet in SPARSE for name in packet.overloads()},
}


@cache
def compositions() -> dict[OpOverload, Callable[..., Any]]:
    """By operator, the function that is recorded in its place."""
    return {**decompositions_of(BY_TORCH), **OURS}
