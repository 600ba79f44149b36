"""A handful of torch's operator database; `make conformance` runs much more of it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conformance.findings import Kept
from conformance.on_threads import check
from conformance.operators import SUITE
from conformance.samples import Sample, ways
from torch import Tensor, nn

HANDFUL = random.Random(5).sample(
    [
        "add",
        "amax",
        "cdist",
        "cumsum",
        "gather",
        "index_add",
        "linalg.solve",
        "nn.functional.conv2d",
        "roll",
        "scatter_add",
    ],
    4,
)


def test_a_handful_of_torchs_own_samples(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "found.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            each for entry in SUITE.entries() if entry.name in HANDFUL for each in SUITE.examine(entry, kept, 0.004)
        ]
    assert {each.operator for each in found} == set(HANDFUL)
    assert [each for each in found if each.outcome not in ("equal", "inapplicable")] == []
    assert Kept(kept.path).found == kept.found, "a run that goes on has what was found before"
    assert SUITE.summary(found, len(HANDFUL)).subjects == {"equal": len(HANDFUL)}


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


def of_double(cell: type[nn.Module], **settings: object) -> nn.Module:
    torch.manual_seed(0)
    return cell(6, 4, dtype=torch.float64, **settings)


def twice(cell: nn.Module) -> Callable[[Tensor], Any]:
    return lambda x: cell(x, cell(x))


LABELS = torch.tensor([[1, 0, -1, 2, -1], [3, 3, 1, 0, 4]])
TABLE, BAGS, COUNTS = random_tensor(7, 4), torch.tensor([0, 2, 2, 5]), torch.tensor([1, 2, 0, 3, 1])
LACKING: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "LSTMCell": (twice(of_double(nn.LSTMCell)), [random_tensor(5, 6)]),
    "LSTMCell without a batch": (of_double(nn.LSTMCell, bias=False), [random_tensor(6)]),
    "GRUCell": (twice(of_double(nn.GRUCell)), [random_tensor(5, 6)]),
    "RNNCell": (of_double(nn.RNNCell), [random_tensor(5, 6)]),
    "RNNCell, relu": (of_double(nn.RNNCell, nonlinearity="relu", bias=False), [random_tensor(5, 6)]),
    "multilabel_margin of one sample": (lambda x: F.multilabel_margin_loss(x, LABELS[0]), [random_tensor(5)]),
    "multilabel_margin": (lambda x: F.multilabel_margin_loss(x, LABELS), [random_tensor(2, 5)]),
    "multilabel_margin of each": (
        lambda x: F.multilabel_margin_loss(x, LABELS, reduction="none"),
        [random_tensor(2, 5)],
    ),
    "cov": (torch.cov, [random_tensor(6, 5)]),
    "weighted cov": (
        lambda x, a: torch.cov(x, fweights=COUNTS, aweights=a),
        [random_tensor(6, 5), random_tensor(5) ** 2],
    ),
    "Gaussian likelihood": (
        F.gaussian_nll_loss,
        [random_tensor(6, 5), random_tensor(6, 5), random_tensor(6, 5).detach() ** 2],
    ),
    "rows from one that a constant says": (
        lambda x: x.narrow(0, torch.tensor(1), 3) + x.narrow(0, torch.tensor(-3), 3),
        [random_tensor(6, 5)],
    ),
    "windows at random in one sample": (
        lambda x, u: F.fractional_max_pool2d(x, 2, (2, 3), _random_samples=u),
        [random_tensor(3, 5, 6), torch.rand(1, 3, 2, dtype=torch.float64)],
    ),
    "corrcoef": (torch.corrcoef, [random_tensor(6, 5)]),
    "combinations": (lambda x: torch.combinations(x, 3), [random_tensor(6)]),
    "ctc": (
        lambda x, t: F.ctc_loss(x.log_softmax(-1), t, (8, 7, 8), (3, 2, 3)),
        [random_tensor(8, 3, 5), LABELS[:, :3].abs()[[0, 1, 1]]],
    ),
    "integers in a range": (lambda x: x * torch.empty_like(x).random_(1, 7), [random_tensor(4, 5)]),
    "means of bags": (lambda w, i: F.embedding_bag(i, w), [TABLE, torch.randint(7, (6, 3))]),
    "sums of bags": (
        lambda w, i: F.embedding_bag(i, w, BAGS, mode="sum", padding_idx=-3),
        [TABLE, torch.randint(7, (9,))],
    ),
    "batch norm of nothing": (
        lambda x, w: F.batch_norm(x, None, None, w, training=True),
        [random_tensor(0, 4, 3), random_tensor(4)],
    ),
    "batch norm of no channels": (lambda x: F.batch_norm(x, x.detach(), x.detach()), [random_tensor(0)]),
    "dropout of empty blocks": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, dropout_p=0.3),
        [random_tensor(2, 3, 4), random_tensor(2, 7, 4)],
    ),
    "nearest quantiles": (
        lambda x, q: torch.quantile(x, q, 1, interpolation="nearest"),
        [random_tensor(2, 6), torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)],
    ),
    "quantiles of a number": (
        lambda q, x: torch.quantile(x, q, 0),
        [torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True), random_tensor()],
    ),
    "lower quantiles of constants": (
        lambda q: torch.quantile(torch.arange(6.0, dtype=torch.float64), q, interpolation="lower"),
        [torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)],
    ),
    "bins as many as elements": (
        lambda x, edges, w: torch.histogram(x, edges, weight=w),
        [random_tensor(6).detach(), torch.linspace(-2, 2, 6, dtype=torch.float64), random_tensor(6).detach()],
    ),
    "an empty index of more dims": (lambda x: x.gather(0, torch.empty(2, 0, dtype=torch.int64)), [random_tensor(5)]),
    "nothing before rows": (lambda x, y: torch.cat((x, y)), [random_tensor(0), random_tensor(4, 3)]),
    "attention that broadcasts": (
        F.scaled_dot_product_attention,
        [random_tensor(3, 6, 4), random_tensor(2, 3, 7, 4), random_tensor(2, 1, 7, 4)],
    ),
}


@pytest.mark.parametrize("name", LACKING)
def test_calls_that_the_database_lacks(name: str) -> None:
    call, tensors = LACKING[name]
    sample = Sample(name, 0, call, tuple(x.detach().requires_grad_(x.requires_grad) for x in tensors), 0)
    found = list(check(sample, [way for way in ways(sample) if way.others == "whole"]))
    fine = ("equal", "gathered") if "at random" in name or "empty index" in name else ("equal",)
    assert [each for each in found if each.outcome not in fine] == []
