"""Views of tensors that are written to: blocks share memory as the whole tensors do, or the view is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gridwise.errors import UnsupportedError

from .equality import compare_on_threads
from .of_functions import Of, parameter

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "expand": lambda z: z.expand(3, 6, 4),
    "expand to more dims": lambda z: z.expand(2, 1, 6, 4),
    "expand as": lambda z: z.expand_as(torch.ones(3, 6, 4)),
    "diagonal": lambda z: z.diagonal(0, 1, 2),
    "select": lambda z: z.select(1, 2),
    "unbind": lambda z: z.unbind(1)[3],
    "split": lambda z: z.split(2, 1)[1],
    "unfold": lambda z: z.unfold(1, 3, 2),
    "flatten": lambda z: z.flatten(),
    "slice": lambda z: z[:, 1::2],
    "squeeze": lambda z: z.squeeze(0),
    "transposed": lambda z: z.mT,
}


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("of_sum", [False, True], ids=["blocks", "sum"])
def test_writes_are_seen_through_views(name: str, grid: tuple[int, ...], of_sum: bool) -> None:
    """On either side; of blocks, and of a sum over the workers."""

    def base_written(m: Of, x: Tensor) -> Tensor:
        z = x.sum(0, keepdim=True) if of_sum else x[:1] * 1
        y = VIEWS[name](z)
        z.add_(1)
        return y * 1

    def view_written(m: Of, x: Tensor) -> Tensor:
        z = x.sum(0, keepdim=True) if of_sum else x[:1] * 1
        view = VIEWS[name](z)
        if not name.startswith("expand"):  # torch refuses to write to these
            view.add_(1)
        return z * 1

    for function in (base_written, view_written):
        try:
            errors, _ = compare_on_threads(Of(function), [parameter(2, 6, 4)], grid)
        except UnsupportedError as error:
            assert "a view" in str(error)  # noqa: PT017
            assert "written" in str(error)  # noqa: PT017
            continue
        assert max(errors.values()) < 1e-12, errors
