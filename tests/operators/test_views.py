"""Views: other dims for the same elements."""

from __future__ import annotations

import random

import pytest
import torch

from gridwise.grid import Box
from gridwise.operators.views import reshaped

from .contract import Case, check_case, some_boxes

X = (3, 4, 7, 6)
CASES: list[Case] = [
    ("flatten", lambda x: x.flatten(2), (X,)),
    ("flatten", lambda x: x.flatten(), (X,)),
    ("view", lambda x: x.view(3, 2, 2, 42), (X,)),
    ("view", lambda x: x.view(2, 6, 21, 2), (X,)),
    ("view", lambda x: x.view(36, 14), (X,)),
    ("reshape", lambda x: x.reshape(12, 1, 7, 2, 3), (X,)),
    ("reshape", lambda x: x.reshape(8, 3), ((2, 12),)),
    ("reshape", lambda x: x.reshape(2, 12), ((8, 3),)),
    ("reshape", lambda x: x.reshape(()), ((1, 1),)),
    ("view", lambda x: x.view(1, 1), ((),)),
    ("view_as", lambda x, y: x.view_as(y), (X, (12, 42))),
    ("unflatten", lambda x: x.unflatten(1, (5, 6)), ((3, 30, 2),)),
    ("unsqueeze", lambda x: x.unsqueeze(1), (X,)),
    ("squeeze", lambda x: x.squeeze(), ((1, 4, 1, 5),)),
    ("squeeze", lambda x: x.squeeze(0), ((1, 4, 1, 5),)),
    ("view", lambda x: x.view(torch.int64), (X,)),
    ("permute", lambda x: x.permute(2, 0, 3, 1), (X,)),
    ("transpose", lambda x: x.transpose(-1, 1), (X,)),
    ("movedim", lambda x: x.movedim((0, 1), (2, -1)), (X,)),
    ("t", lambda x: x.t(), ((3, 4),)),
    ("t", lambda x: x.t(), ((3,),)),
    ("mT", lambda x: x.mT, (X,)),
    ("numpy_T", lambda x: x.T, ((3, 4),)),
    ("expand", lambda x: x.expand(5, 3, -1, 4), ((3, 7, 1),)),
    ("expand_as", lambda x, y: x.expand_as(y), ((7, 1), X)),
    ("view_as_real", lambda x: torch.view_as_real(torch.complex(x, x.sin())), (X,)),
    ("view_as_complex", lambda x: torch.view_as_complex(x), ((3, 5, 2),)),
    ("view_as_complex", lambda x: torch.view_as_complex(x.movedim(0, -1).contiguous()), ((2, 5, 3),)),
    ("diagonal", lambda x: x.diagonal(1, 1, -1), (X,)),
    ("diagonal", lambda x: x.diagonal(-2, 3, 2), (X,)),
    ("diag_embed", lambda x: torch.diag_embed(x, 1), ((3, 4),)),
    ("rot90", lambda x: x.rot90(3, (1, 2)), (X,)),
    ("diag_embed", lambda x: torch.diag_embed(x, -2, 0, 2), ((3, 4),)),
    ("diagonal_scatter", lambda x, y: x.diagonal_scatter(y, -1, 0, 2), ((5, 3, 6), (3, 4))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_views(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize(
    ("old", "new"),
    [((6, 4), (4, 6)), ((24,), (2, 3, 4)), ((4, 6), (2, 2, 3, 2)), ((2, 3, 4), (24,)), ((5, 1, 6), (1, 10, 3))],
)
def test_a_box_of_another_shape(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    x = torch.arange(24 if torch.Size(old).numel() == 24 else 30).view(old)
    made = reshaped(old, new)
    for box in some_boxes(new, 40, random.Random(0)):
        (need,) = made.needs(box)
        assert torch.equal(made.run(box, x[need.slices]), x.view(new)[box.slices])


def test_rows_of_an_image_from_its_line_are_no_copy() -> None:
    line = torch.arange(40.0)
    made = reshaped((40,), (8, 5))
    (need,) = made.needs(Box((2, 1), (4, 3)))
    assert need == Box((11,), (18,))
    part = line[need.slices]
    assert made.run(Box((2, 1), (4, 3)), part).untyped_storage()._cdata == part.untyped_storage()._cdata


def test_groups_of_channels_need_their_channels_only() -> None:
    made = reshaped((2, 8, 5, 5), (2, 4, 50))
    assert made.needs(Box((1, 1, 0), (2, 3, 50))) == [Box((1, 2, 0, 0), (2, 6, 5, 5))]
    assert made.needs(Box((1, 1, 3), (2, 2, 9))) == [Box((1, 2, 0, 0), (2, 3, 2, 5))]
