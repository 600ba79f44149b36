"""Tensors made from sizes and numbers."""

from __future__ import annotations

import pytest
import torch

from .contract import Case, check_case

X = (5, 7)
aten = torch.ops.aten
CASES: list[Case] = [
    ("zeros", lambda x: torch.zeros(5, 7) + x, (X,)),
    ("full", lambda x: torch.full((5, 7), 2.5, dtype=torch.float64) + x, (X,)),
    ("new_full", lambda x: x.new_full((3, 5, 7), 2.5) + x, (X,)),
    ("new_zeros", lambda x: x.new_zeros((3, 5, 7)) + x, (X,)),
    ("ones_like", lambda x: torch.ones_like(x, dtype=torch.int32) + x, (X,)),
    ("full_like", lambda x: torch.full_like(x, 3) + x, (X,)),
    ("copy", lambda x, y: aten.copy(x.long(), y.detach() * 5), (X, (7,))),
    ("fill", lambda x: aten.fill(x, 3.0), (X,)),
    ("fill", lambda x, y: aten.fill(x, y), (X, ())),
    ("zero", lambda x: aten.zero(x), (X,)),
    ("arange", lambda x: torch.arange(7) + x, (X,)),
    ("arange", lambda x: torch.arange(10, -4, -2) + x, (X,)),
    ("arange", lambda x: torch.arange(0.1, 0.75, 0.1, dtype=torch.float64) + x, (X,)),
    ("linspace", lambda x: torch.linspace(0, 1, 7) + x, (X,)),
    ("eye", lambda x: torch.eye(5, 7) + x, (X,)),
    ("tril_indices", lambda x: torch.tril_indices(4, 4) + x[0, 0], (X,)),
    ("hann_window", lambda x: torch.hann_window(7) + x, (X,)),
    ("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), ((3,), (5,))),
    ("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="xy"), ((3,), (5,))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_creation(case: Case) -> None:
    check_case(case)
