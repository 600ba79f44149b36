"""Rows of a dim, and tensors in which they are replaced."""

from __future__ import annotations

import pytest
import torch

from gridwise.grid import Box
from gridwise.operators.call import OperatorCall, TensorSpec
from gridwise.operators.on_boxes import Local
from gridwise.operators.slicing import slice_scatter

from .contract import Case, check_case

X = (3, 4, 7, 6)
CASES: list[Case] = [
    ("slice", lambda x: x[:, :, 1:], (X,)),
    ("slice", lambda x: x[:, :, 1:6:3, -4:-1], (X,)),
    ("slice", lambda x: x[..., :100:2], (X,)),
    ("narrow", lambda x: x.narrow(2, 2, 3), (X,)),
    ("narrow", lambda x: x.narrow(2, -3, 2), (X,)),
    ("select", lambda x: x[:, -1], (X,)),
    ("select", lambda x: x.select(3, 2), (X,)),
    ("split", lambda x: x.split(3, 2), (X,)),
    ("split_with_sizes", lambda x: x.split([1, 4, 2], 2), (X,)),
    ("chunk", lambda x: x.chunk(4, -1), (X,)),
    ("tensor_split", lambda x: x.tensor_split(3, 2), (X,)),
    ("unbind", lambda x: x.unbind(1), (X,)),
    ("slice_scatter", lambda x, y: x.slice_scatter(y, 2, 1, 4), (X, (3, 4, 3, 6))),
    ("slice_scatter", lambda x, y: x.slice_scatter(y, 3, 1, 6, 2), (X, (3, 4, 7, 3))),
    ("select_scatter", lambda x, y: x.select_scatter(y, 2, -2), (X, (3, 4, 6))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_slicing(case: Case) -> None:
    check_case(case)


def test_rows_that_are_replaced_are_not_needed() -> None:
    specs = [TensorSpec(shape, torch.float32, torch.device("cpu")) for shape in ((8, 3), (4, 3))]
    made = slice_scatter(OperatorCall(torch.ops.aten.slice_scatter.default, (*specs, 0, 2, 6), {}, (specs[0],)))
    assert isinstance(made, Local)
    assert made.needs(Box((3, 0), (5, 3))) == [Box((0, 0), (0, 0)), Box((1, 0), (3, 3))]
    assert made.needs(Box((6, 0), (8, 3))) == [Box((6, 0), (8, 3)), Box((0, 0), (0, 0))]
    assert made.needs(Box((5, 0), (8, 3))) == [Box((5, 0), (8, 3)), Box((3, 0), (4, 3))]
