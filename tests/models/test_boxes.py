"""Operators that no rule places: by what they need for a box, or as others, or along the dims before a matrix.

All equal torch's, forward and backward, and nothing is gathered but what has to be whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .equality import compare_on_threads
from .of_functions import Of, parameter

GRIDS = [(2, 1, 1, 1), (1, 2, 1, 2), (1, 1, 4, 1)]
ROWS = torch.tensor([4, 0, 4])


def put(x: Tensor, value: Any, *index: Any) -> Tensor:
    y = x * 1
    y[index] = value
    return y


OPERATORS: dict[str, Callable[[Any, Tensor], Any]] = {
    "rows replaced": lambda m, x: put(x, x[:, :, :2].sin(), slice(None), slice(None), ROWS[:2]),
    "rows added": lambda m, x: x.index_add(2, ROWS, x[:, :, 1:4] * 2) + x.index_fill(1, ROWS[1:2], 0.5),
    "rows copied": lambda m, x: x.index_copy(3, ROWS[:2], x[..., 1:3] * 3),
    "scattered": lambda m, x: x.scatter(2, ROWS.view(1, 1, 3, 1).expand(3, 4, 3, 6), x[:, :, :3] * 2),
    "scattered and added": lambda m, x: x.scatter_add(1, ROWS[1:2].view(1, 1, 1, 1).expand(2, 1, 5, 6), x[:2, :1, :5]),
    "masked": lambda m, x: put(x, 0.3, x > 0.5) + put(x, x[0, 0, 0].cos(), (x > 0).any(-1)),
    "a slice replaced": lambda m, x: x.slice_scatter(x[:, :, 1:3], 2, 2, 6, 2).select_scatter(x[:, 0], 1, 2),
    "a diagonal replaced": lambda m, x: x.diagonal_scatter(x[..., :6].diagonal(0, 2, 3), 0, 2, 3),
    "next elements where a mask is true": lambda m, x: x.masked_scatter(x > 0, x.cos()),
    "matrices": lambda m, x: torch.linalg.inv(x @ x.mT + 3 * torch.eye(7)).logdet(),
    "matrices that broadcast": lambda m, x: torch.linalg.solve(m.p.reshape(4, 6, 7)[:, :, :6] + torch.eye(6) * 9, x.mT),
    "diagonals": lambda m, x: x.diagonal(1, 2, 3).diag_embed(-1) + x.diagonal(-1, 3, 2).diag_embed(1),
    "triangles": lambda m, x: x.tril(-2) + x.triu(1),
    "vectors at right angles": lambda m, x: torch.linalg.cross(x[:, :3], x[:, 1:], dim=1),
    "distances": lambda m, x: torch.cdist(x, x[:, :, 2:5].sin()),
    "unpooled": lambda m, x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "looked up": lambda m, x: torch.bucketize(x.detach(), m.p.detach().flatten().sort()[0]) * x,
    "turned": lambda m, x: x.rot90(1, (2, 3)) + x.rot90(3, (3, 2)),
    "copies of views": lambda m, x: torch.squeeze_copy(torch.unsqueeze_copy(torch.transpose_copy(x, 1, 2), 0), 0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_equal_torchs(name: str) -> None:
    for grid in GRIDS:
        model, x = Of(OPERATORS[name], p=parameter(4, 7, 6)), parameter(3, 4, 7, 6).requires_grad_()
        errors, _ = compare_on_threads(model, [x], grid, gather="refuse")
        assert max(errors.values()) < 1e-10, (grid, errors)


@pytest.mark.parametrize("bins", [0, 1])
def test_counts_are_those_of_all_blocks(bins: int) -> None:
    x = torch.randn(3, 40, dtype=torch.float64)
    counted = [lambda m, x: x.histc(9), lambda m, x: torch.histogram(x, 5, weight=x.abs(), density=True)[0]][bins]
    errors, program = compare_on_threads(Of(counted), [x], (1, 2), backward=False, gather="refuse")
    assert max(errors.values()) < 1e-12
    assert not program.report.gathers


def test_workers_whose_blocks_need_nothing_of_a_tensor_take_part_in_its_gradient() -> None:
    """One of two workers replaces its only row, so it does not need the old one; backward once waited for it."""
    x = torch.randn(2, dtype=torch.float64, requires_grad=True)
    errors, _ = compare_on_threads(Of(lambda m, x: x.sin().select_scatter(x.cos().sum(), 0, 1)), [x], (2,))
    assert max(errors.values()) < 1e-12
