"""Losses: their terms, sums and means."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .contract import Case, check_case

X = (3, 4, 7, 6)
WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.1], dtype=torch.float64)
REDUCTIONS = "none", "sum", "mean"


def classes(x: Tensor, ignored: bool = False) -> Tensor:
    found = x[:, :1].squeeze(1).abs().mul(3).long() % 4
    return found.masked_fill(found == 1, -100) if ignored else found


CASES: list[Case] = [
    case
    for how in REDUCTIONS
    for case in [
        ("mse_loss", lambda x, y, how=how: F.mse_loss(x, y, reduction=how), (X, X)),
        ("l1_loss", lambda x, y, how=how: F.l1_loss(x, y, reduction=how), (X, X)),
        ("smooth_l1_loss", lambda x, y, how=how: F.smooth_l1_loss(x, y, reduction=how), (X, X)),
        ("huber_loss", lambda x, y, how=how: F.huber_loss(x, y, reduction=how, delta=0.3), (X, X)),
        (
            "binary_cross_entropy",
            lambda x, y, how=how: F.binary_cross_entropy(x.sigmoid(), y.detach().sigmoid(), reduction=how),
            (X, X),
        ),
        (
            "binary_cross_entropy_with_logits",
            lambda x, y, how=how: F.binary_cross_entropy_with_logits(
                x, y.detach().sigmoid(), pos_weight=WEIGHT.view(4, 1, 1), reduction=how
            ),
            (X, X),
        ),
        (
            "kl_div",
            lambda x, y, how=how: F.kl_div(x, y.softmax(1), reduction="batchmean" if how == "mean" else how),
            (X, X),
        ),
        ("soft_margin_loss", lambda x, y, how=how: F.soft_margin_loss(x, y.detach().sign(), reduction=how), (X, X)),
        ("poisson_nll_loss", lambda x, y, how=how: F.poisson_nll_loss(x, y.detach().abs(), reduction=how), (X, X)),
        ("cross_entropy_loss", lambda x, how=how: F.cross_entropy(x, classes(x.detach(), True), reduction=how), (X,)),
        (
            "cross_entropy_loss",
            lambda x, how=how: F.cross_entropy(
                x, classes(x.detach(), True), WEIGHT, reduction=how, label_smoothing=0.2
            ),
            (X,),
        ),
        (
            "cross_entropy_loss",
            lambda x, y, how=how: F.cross_entropy(x, y.detach().softmax(1), WEIGHT, reduction=how),
            (X, X),
        ),
        ("nll_loss_nd", lambda x, how=how: F.nll_loss(x, classes(x.detach()), WEIGHT, reduction=how), (X,)),
        ("multi_margin_loss", lambda x, how=how: F.multi_margin_loss(x, classes(x.detach()), reduction=how), ((6, 4),)),
    ]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_losses(case: Case) -> None:
    check_case(case)
