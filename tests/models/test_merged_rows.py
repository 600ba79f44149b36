"""Rows that are merged only for a product stay apart: nothing is moved on a grid of the batch alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gridwise.errors import UnsupportedError
from gridwise.models.recording.merged_rows import leading

from .equality import compare_on_threads, recorded


def encoder(batch_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 24, 0.0, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Attention(nn.Module):
    """Torch's, with its weights too."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x, average_attn_weights=False)


@pytest.mark.parametrize(
    ("make", "shape", "grid"),
    [
        (lambda: encoder(True), (8, 5, 16), (4, 1, 1)),
        (lambda: encoder(False), (5, 8, 16), (1, 4, 1)),
        (lambda: encoder(False), (5, 7, 16), (1, 4, 1)),
        (Attention, (5, 8, 16), (1, 4, 1)),
    ],
)
def test_a_transformer_on_a_grid_of_the_batch_moves_nothing(make: Any, shape: Any, grid: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64).requires_grad_()
    errors, program = compare_on_threads(make().double(), [x], grid)
    assert max(errors.values()) < 1e-10
    assert program.report.moved == 0


def test_which_rows_were_merged() -> None:
    assert leading(torch.Size((5, 8, 4, 2)), torch.Size((40, 8))) == [5, 8]
    assert leading(torch.Size((5, 32, 2)), torch.Size((40, 8))) == [5, 8]
    assert leading(torch.Size((5, 1, 8)), torch.Size((5, 8))) is None
    assert leading(torch.Size((40, 4, 2)), torch.Size((40, 8))) is None
    assert leading(torch.Size((6, 10)), torch.Size((4, 15))) is None
    assert leading(torch.Size((0, 10)), torch.Size((0, 10))) is None


class Written(nn.Module):
    """Writes to what was merged, before or after the product, or to what it was merged from."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.linear = where, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        source = x * 2
        merged = source.view(-1, 6)
        if self.where == "merged":
            merged.add_(1)
        if self.where == "source":
            source.mul_(3)
        if self.where == "copy":
            merged = source.transpose(0, 1).reshape(-1, 6)
            source.mul_(3)
        y = self.linear(merged)
        if self.where == "result":
            y[:2].mul_(5)
        return y.view(x.shape[0], x.shape[1], 4) + F.linear(source, self.linear.weight)


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 2, 1)], ids=["batch", "rows"])
@pytest.mark.parametrize("where", ["nowhere", "merged", "source", "copy", "result"])
def test_what_is_written_on_the_way_is_seen(where: str, grid: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, 6, dtype=torch.float64).requires_grad_()
    model = Written(where).double()
    if where in ("merged", "source") and grid == (1, 2, 1):
        with pytest.raises(UnsupportedError, match="a view that is written to, of blocks that have to be moved"):
            compare_on_threads(model, [x], grid)
        return
    errors, _ = compare_on_threads(model, [x], grid)
    assert max(errors.values()) < 1e-10


def test_views_that_follow_are_of_the_product_itself() -> None:
    def parted(x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(x.flatten(0, 1), x[0, 0].expand(3, -1))
        return y.view(2, 4, 3), y

    graph = recorded(parted, [torch.randn(2, 4, 6)]).module.graph
    linear = next(node for node in graph.nodes if "linear" in str(node.target))
    assert linear.meta["val"].shape == (2, 4, 3)
    assert {tuple(user.meta["val"].shape) for user in linear.users} == {(2, 4, 3), (8, 3)}
