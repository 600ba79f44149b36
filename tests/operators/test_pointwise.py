"""Pointwise operators, with broadcasting, and those that are nearly so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gridwise.operators.table import maker_for

from .contract import Case, check_case

X = (3, 4, 7, 6)
aten = torch.ops.aten
CASES: list[Case] = [
    ("add", lambda x, y: x + y, (X, X)),
    ("add", lambda x, y: torch.add(x, y, alpha=3), (X, (4, 1, 6))),
    ("mul", lambda x, y: x * y, ((3, 1, 7, 1), (4, 1, 6))),
    ("sub", lambda x, y: x - y, (X, ())),
    ("div", lambda x, y: x / y, (X, (6,))),
    ("rsub", lambda x: torch.rsub(x, 1), (X,)),
    ("where", lambda x, y: torch.where(x > 0, x, y), (X, (7, 1))),
    ("where", lambda x: torch.where(x > 0, x, 0.5), (X,)),
    ("masked_fill", lambda x: x.masked_fill(x < -1, 2.0), (X,)),
    ("clamp", lambda x, y: x.clamp(y, y + 1), (X, (6,))),
    ("addcmul", lambda x, y: torch.addcmul(x, x, y, value=2.0), (X, (7, 6))),
    ("lerp", lambda x, y: torch.lerp(x, y, 0.3), (X, (7, 6))),
    ("complex", lambda x, y: torch.complex(x, y).abs(), (X, X)),
    ("real", lambda x, y: torch.complex(x, y).sin().real, (X, X)),
    ("clone", lambda x: x.clone(), (X,)),
    ("gelu", lambda x: F.gelu(x, approximate="tanh"), (X,)),
    ("maximum", lambda x, y: torch.maximum(x, y), (X, X)),
    ("frexp", lambda x: torch.frexp(x), (X,)),
    ("sin", lambda x: x.sin(), ((),)),
    ("to", lambda x: x.to(torch.float32).double(), (X,)),
    ("_to_copy", lambda x: aten._to_copy(x, dtype=torch.float32), (X,)),
    ("type_as", lambda x, y: x.type_as(y.float()), (X, (3,))),
    ("prelu", lambda x, y: F.prelu(x, y), (X, (4,))),
    ("prelu", lambda x, y: F.prelu(x, y), (X, (1,))),
    ("prelu", lambda x, y: F.prelu(x, y), ((5,), (1,))),
    ("glu", lambda x: F.glu(x, 1), (X,)),
    ("glu", lambda x: F.glu(x), (X,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_pointwise(case: Case) -> None:
    check_case(case)


def test_operators_that_write_are_not_in_the_table() -> None:
    assert maker_for(aten.add_.Tensor) is None
    assert maker_for(aten.add.out) is None
    assert maker_for(aten.add.Tensor) is not None
