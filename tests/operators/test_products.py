"""Products of tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gridwise.operators import sums

from .contract import Case, check, check_case

CASES: list[Case] = [
    ("matmul", lambda x, y: x @ y, ((3, 1, 4, 5), (2, 5, 6))),
    ("matmul", lambda x, y: x @ y, ((3, 4, 5), (5,))),
    ("matmul", lambda x, y: x @ y, ((5,), (2, 5, 3))),
    ("dot", lambda x, y: x.dot(y), ((50,), (50,))),
    ("mm", lambda x, y: x.mm(y), ((4, 5), (5, 6))),
    ("bmm", lambda x, y: x.bmm(y), ((3, 4, 5), (3, 5, 6))),
    ("mv", lambda x, y: x.mv(y), ((4, 5), (5,))),
    ("linear", lambda x, w, b: F.linear(x, w, b), ((2, 3, 5), (6, 5), (6,))),
    ("linear", lambda x, w: F.linear(x, w), ((2, 3, 5), (6, 5))),
    ("linear", lambda x, w: F.linear(x, w), ((2, 5), (5,))),
    ("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=2.0, alpha=0.5), ((6,), (4, 5), (5, 6))),
    ("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, beta=2.0), ((3, 1, 6), (3, 4, 5), (3, 5, 6))),
    ("addmv", lambda c, a, b: torch.addmv(c, a, b), ((4,), (4, 5), (5,))),
    ("addr", lambda c, a, b: torch.addr(c, a, b), ((4, 5), (4,), (5,))),
    ("addbmm", lambda c, a, b: torch.addbmm(c, a, b), ((4, 6), (3, 4, 5), (3, 5, 6))),
    ("einsum", lambda x, w: torch.einsum("nchw,oc->nohw", x, w), ((2, 4, 5, 3), (6, 4))),
    ("einsum", lambda x, y: torch.einsum("nchw,ndhw->ncd", x, y), ((2, 4, 5, 3), (2, 3, 5, 3))),
    ("einsum", lambda x, y, z: torch.einsum("...a,...b,ab", x, y, z), ((3, 4), (5, 3, 6), (4, 6))),
    ("tensordot", lambda x, w: torch.tensordot(x, w, ([1, 3], [2, 0])), ((2, 4, 5, 3), (3, 6, 4))),
    ("outer", lambda x, y: torch.outer(x, y), ((4,), (5,))),
    ("_trilinear", lambda x, y, w, b: F.bilinear(x, y, w, b), ((3, 2, 4), (3, 2, 5), (6, 4, 5), (6,))),
    ("_cdist_forward", lambda x, y: torch.cdist(x, y), ((3, 4, 5), (3, 6, 5))),
    ("_cdist_forward", lambda x, y: torch.cdist(x, y, p=1.0), ((4, 5), (6, 5))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_products(case: Case) -> None:
    check_case(case)


OF_TWO = [case for case in CASES if len(case[2]) == 2 and case[0] != "_cdist_forward"]


@pytest.mark.parametrize("case", OF_TWO, ids=lambda case: case[0])
def test_long_sums_of_products_are_collected(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "LONG", 1)
    check_case(case)


def test_sums_in_half_precision_are_kept_in_double() -> None:
    x = torch.rand(2, 40000, dtype=torch.bfloat16)

    def gram(x: Tensor) -> Tensor:
        return x @ x.T

    assert "aten::matmul" in check(gram, x)
