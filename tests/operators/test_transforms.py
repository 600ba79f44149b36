"""Operators that couple the rows of some dims."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from .contract import Case, check_case

X = (3, 4, 7, 6)
M = (3, 2, 4, 4)


def positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(4, dtype=x.dtype)


CASES: list[Case] = [
    ("softmax", lambda x: x.softmax(1), (X,)),
    ("softmax", lambda x: x.softmax(0), ((),)),
    ("log_softmax", lambda x: x.log_softmax(-1), (X,)),
    ("cumsum", lambda x: x.cumsum(2), (X,)),
    ("cumprod", lambda x: x.cumprod(2), (X,)),
    ("logcumsumexp", lambda x: x.logcumsumexp(2), (X,)),
    ("cummax", lambda x: x.cummax(2), (X,)),
    ("sort", lambda x: x.sort(2, True), (X,)),
    ("argsort", lambda x: x.argsort(2), (X,)),
    ("topk", lambda x: x.topk(3, 2), (X,)),
    ("renorm", lambda x: x.renorm(2, 1, 1.0), (X,)),
    ("fft_rfft2", lambda x: torch.fft.rfft2(x).abs(), (X,)),
    ("fft_irfftn", lambda x: torch.fft.irfftn(torch.fft.rfftn(x, dim=(1, 2)), s=(4, 7), dim=(1, 2)), (X,)),
    ("fft_fft", lambda x: torch.fft.fft(x, dim=1).abs(), (X,)),
    ("linalg_inv_ex", lambda x: torch.linalg.inv(positive(x)), (M,)),
    ("_linalg_det", lambda x: torch.linalg.det(x), (M,)),
    ("_linalg_slogdet", lambda x: torch.linalg.slogdet(x), (M,)),
    ("linalg_cholesky_ex", lambda x: torch.linalg.cholesky(positive(x)), (M,)),
    ("_linalg_eigh", lambda x: torch.linalg.eigh(positive(x)).eigenvalues, (M,)),
    ("_linalg_solve_ex", lambda x, y: torch.linalg.solve(positive(x), y), (M, (3, 2, 4, 5))),
    ("linalg_matrix_exp", lambda x: torch.linalg.matrix_exp(x * 0.1), (M,)),
    ("linalg_cross", lambda x, y: torch.linalg.cross(x, y), ((4, 5, 3), (1, 5, 3))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_transforms(case: Case) -> None:
    check_case(case)


def parameters(inputs: int, hidden: int, gates: int, layers: int, directions: int) -> list[Any]:
    made, generator = [], torch.Generator().manual_seed(1)
    for layer in range(layers):
        width = inputs if layer == 0 else hidden * directions
        for _ in range(directions):
            for shape in ((gates * hidden, width), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)):
                made.append(torch.randn(shape, dtype=torch.float64, generator=generator) * 0.3)
    return made


LSTM, GRU = parameters(4, 3, 4, 2, 1), parameters(4, 3, 3, 1, 2)
RECURRENT: list[Case] = [
    (
        "lstm",
        lambda x, h, c: torch.lstm(x, [h, c], LSTM, True, 2, 0.0, True, False, False),
        ((5, 6, 4), (2, 6, 3), (2, 6, 3)),
    ),
    (
        "gru",
        lambda x, h: torch.gru(x, h, GRU, True, 1, 0.0, True, True, True),
        ((6, 5, 4), (2, 6, 3)),
    ),
]


@pytest.mark.parametrize("case", RECURRENT, ids=lambda case: case[0])
def test_recurrent(case: Case) -> None:
    check_case(case)
