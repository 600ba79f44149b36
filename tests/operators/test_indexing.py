"""Indexing by tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .contract import Case, check_case

X = (3, 4, 7, 6)
aten = torch.ops.aten
PLACES, ROWS = torch.tensor([[0, 1], [2, 0]]), torch.tensor([2, 0])


def indices(x: Tensor, n: int) -> Tensor:
    return (x.detach().abs() * 5).long() % n


CASES: list[Case] = [
    ("index", lambda x: x[:, ROWS], (X,)),
    ("index", lambda x: x[:, PLACES, ROWS], (X,)),
    ("index", lambda x: x[PLACES, :, ROWS], (X,)),
    ("index", lambda x: x[..., PLACES], (X,)),
    ("index_put", lambda x, y: aten.index_put(x, [None, PLACES, ROWS], y), (X, (3, 1, 2, 6))),
    ("index_put", lambda x, y: aten.index_put(x, [PLACES, None, ROWS], y, True), (X, (2, 2, 4, 6))),
    ("index_put", lambda x, y: aten.index_put(x, [x > 0], y[0]), (X, (1,))),
    ("index_put", lambda x, y: aten.index_put(x, [None, x[0, :, :, 0] > 0], y), (X, ())),
    ("index_select", lambda x: x.index_select(2, torch.tensor([1, 1, 6, 0])), (X,)),
    ("index_add", lambda x, y: x.index_add(2, torch.tensor([1, 1, 6]), y, alpha=2), (X, (3, 4, 3, 6))),
    ("index_copy", lambda x, y: x.index_copy(-1, torch.tensor([1, 4]), y), (X, (3, 4, 7, 2))),
    ("index_fill", lambda x: x.index_fill(1, ROWS, 2.0), (X,)),
    ("gather", lambda x, y: x.gather(1, indices(y, 4)), (X, (3, 6, 7, 6))),
    ("gather", lambda x, y: x.gather(2, indices(y, 7)), (X, (2, 4, 9, 3))),
    ("take", lambda x, y: x.take(indices(y, 12)), ((3, 4), (2, 5))),
    ("take_along_dim", lambda x, y: x.take_along_dim(indices(y, 7), 2), (X, (3, 1, 5, 6))),
    ("take_along_dim", lambda x, y: x.take_along_dim(indices(y, 12)), ((3, 4), (2, 2))),
    ("scatter", lambda x, y: x.scatter(2, indices(y, 7), y), (X, (2, 4, 1, 3))),
    ("scatter", lambda x, y: x.scatter(1, indices(y, 4), 2.0), (X, (2, 4, 6, 3))),
    ("scatter_add", lambda x, y: x.scatter_add(1, indices(y, 4), y), (X, (3, 9, 7, 5))),
    ("scatter_reduce", lambda x, y: x.scatter_reduce(1, indices(y, 4), y, "amax"), (X, (3, 9, 7, 5))),
    ("embedding", lambda x, w: F.embedding(indices(x, 6), w, padding_idx=1), ((3, 5), (6, 4))),
    ("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)), (X,)),
    ("searchsorted", lambda x, y: torch.searchsorted(x.sort(-1)[0], y), ((3, 4, 7), (3, 4, 5))),
    ("searchsorted", lambda x, y: torch.searchsorted(x.sort(-1)[0], y), ((7,), (3, 4, 5))),
    ("isin", lambda x: torch.isin(indices(x, 7), ROWS), (X,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_indexing(case: Case) -> None:
    check_case(case)
