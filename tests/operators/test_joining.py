"""Joins and copies."""

from __future__ import annotations

import pytest
import torch

from .contract import Case, check_case

X = (3, 4, 7, 6)
CASES: list[Case] = [
    ("cat", lambda x, y: torch.cat([x, y], 1), (X, (3, 2, 7, 6))),
    ("cat", lambda x, y: torch.cat([y, x[:, :, :0], x.float(), y], -2), (X, X)),
    ("cat", lambda x, y: torch.cat([y, x]), (X, (0,))),
    ("stack", lambda x, y: torch.stack([x, y.float(), x], 2), (X, X)),
    ("repeat", lambda x: x.repeat(1, 2, 1, 3), (X,)),
    ("repeat", lambda x: x.repeat(2, 1, 3, 2), ((4, 1, 6),)),
    ("tile", lambda x: x.tile(2, 3), (X,)),
    ("tile", lambda x: x.tile(2, 1, 1, 1, 1), (X,)),
    ("repeat_interleave", lambda x: x.repeat_interleave(3, -1), (X,)),
    ("repeat_interleave", lambda x: x.repeat_interleave(2), ((3, 4),)),
    ("tril", lambda x: x.tril(), (X,)),
    ("triu", lambda x: x.triu(2), (X,)),
    ("triu", lambda x: x.triu(-3), (X,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_joining(case: Case) -> None:
    check_case(case)
