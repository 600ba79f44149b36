"""Attention in converted models: keys and values gathered, or one block after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gridwise
from gridwise.models.rules import attention
from gridwise.operators import streamed_attention
from gridwise.testing import check_equal_to_sequential, workers

attend = F.scaled_dot_product_attention
Function = Callable[..., Tensor]


class Of(torch.nn.Module):
    """Attention of three or four maps of its input."""

    def __init__(self, function: Function, mask: Tensor | None = None, heads: int = 4) -> None:
        super().__init__()
        self.function, self.heads = function, heads
        self.maps = torch.nn.ModuleList(torch.nn.Linear(8, n, dtype=torch.float64) for n in (8, 2 * heads, 2 * heads))
        self.mask = None if mask is None else torch.nn.Parameter(mask) if mask.is_floating_point() else mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, 2)).transpose(1, 2) for each in self.maps)
        given = (q, k, v) if self.mask is None else (q, k, v, self.mask)
        return self.function(*given).transpose(1, 2).flatten(2)


GENERATOR = torch.Generator().manual_seed(0)
N = 11
CASES: dict[str, tuple[Function, Any, int]] = {
    "plain": (lambda q, k, v: attend(q, k, v), None, 4),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), None, 4),
    "scaled": (lambda q, k, v: attend(q, k * 1.0, v, scale=0.7), None, 4),
    "mask": (lambda q, k, v, m: attend(q, k, v, m), torch.randn(4, N, N, dtype=torch.float64, generator=GENERATOR), 4),
    "rows": (lambda q, k, v, m: attend(q, k, v, m), torch.randn(N, 1, dtype=torch.float64, generator=GENERATOR), 4),
    "hidden": (lambda q, k, v, m: attend(q, k, v, m), torch.rand(N, N, generator=GENERATOR) > 0.3, 4),
    "grouped": (lambda q, k, v: attend(q, k, v, enable_gqa=True), None, 2),
    "grouped and causal": (lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True), None, 2),
}


@workers(1, 2, 3, 4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("in_turn", [False, True], ids=["gathered", "in turn"])
def test_attention_over_a_cut_sequence(
    name: str, in_turn: bool, gridwise_setting: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LARGE", 0 if in_turn else 1 << 60)
    function, mask, heads = CASES[name]
    for grid in {1: [(1, 1, 1)], 2: [(1, 2, 1)], 3: [(1, 3, 1)], 4: [(1, 4, 1), (2, 2, 1)]}[gridwise_setting[1]]:
        torch.manual_seed(0)
        P = gridwise.world().create_cartesian_topology_partition(grid)
        sequential = Of(function, mask, heads)
        x = torch.randn(2, N, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        model = gridwise.distribute(sequential, P, example=x)
        check_equal_to_sequential(model, sequential, x, P, model.P_y)


@workers(3, transports=("mpi",))
@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_is_the_same_in_turn(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 3, 1])
    torch.manual_seed(0)
    sequential = Of(lambda q, k, v: attend(q, k, v, dropout_p=0.4, is_causal=is_causal))
    x = torch.randn(2, N, 8, dtype=torch.float64)
    mine = x[gridwise.local_slice(P, x.shape)]
    found = []
    for large in (0, 1 << 60):
        monkeypatch.setattr(attention, "LARGE", large)
        model = gridwise.distribute(sequential, P, example=x)
        torch.manual_seed(5)
        given = mine.clone().requires_grad_()
        y = model(given)
        y.sin().sum().backward()
        found.append((y.detach(), given.grad, *(p.grad for p in model.parameters())))
        with gridwise.sequential_random():
            torch.manual_seed(6)
            y = model(mine)
        torch.manual_seed(6)
        torch.testing.assert_close(y, sequential(x)[gridwise.local_slice(P, x.shape)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@workers(3, transports=("mpi",))
def test_queries_that_broadcast_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LARGE", 0)
    P = gridwise.world().create_cartesian_topology_partition([1, 3, 1])
    sequential = Of(lambda q, k, v: attend(q[:1] * 1, k * 1, v * 1, is_causal=True))
    x = torch.randn(2, N, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    check_equal_to_sequential(gridwise.distribute(sequential, P, example=x), sequential, x, P)


@workers(4, transports=("mpi",))
@pytest.mark.parametrize("extent", [32, 35])
def test_causal_work_in_turn_is_the_same_for_all(extent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LARGE", 0)
    for name in ("ROWS", "COLUMNS", "SCORES"):
        monkeypatch.setattr(streamed_attention, name, 1)
    computed = []

    class Counted(attention.StreamedAttention):
        def _scores(self, *given: Any) -> Tensor:
            scores = super()._scores(*given)
            computed.append(scores.numel())
            return scores

    monkeypatch.setattr(attention, "StreamedAttention", Counted)
    P, shape = gridwise.world().create_cartesian_topology_partition([1, 4, 1]), (1, extent, 2)
    x = torch.randn(shape, dtype=torch.float64)[gridwise.local_slice(P, shape)]
    gridwise.distribute(lambda x: attend(x * 1, x * 2, x * 3, is_causal=True), P)(x)
    counts = [int(each[0]) for each in P.allgather_data(np.array([sum(computed)]))]
    assert sum(counts) == extent * (extent + 1) // 2
    assert max(counts) - min(counts) <= extent


@workers(3, transports=("mpi",))
def test_keys_and_values_that_come_in_turn_are_fetched_and_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LARGE", 0)
    fetched: list[tuple[int, ...]] = []

    class Seen(attention.StreamedAttention):
        def add(self, state: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
            fetched.append(tuple(k.shape))
            super().add(state, q, k, v, *rest)

    monkeypatch.setattr(attention, "StreamedAttention", Seen)
    P = gridwise.world().create_cartesian_topology_partition([1, 3, 1])
    x = torch.randn(2, N, 8, dtype=torch.float64)
    model = gridwise.distribute(Of(lambda q, k, v: attend(q, k, v)), P, example=x)
    model(x[gridwise.local_slice(P, x.shape)])
    assert sorted(shape[2] for shape in fetched) == [3, 4, 4]


@workers(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("is_cast", [False, True], ids=["", "autocast"])
def test_half_precision_in_turn(dtype: torch.dtype, is_cast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As precise as torch: one rounding of what float32 makes."""
    monkeypatch.setattr(attention, "LARGE", 0)
    P, shape = gridwise.world().create_cartesian_topology_partition([1, 1, 3, 1]), (2, 4, N, 8)
    wholes = [torch.randn(shape, generator=GENERATOR.manual_seed(n)).to(dtype).requires_grad_() for n in range(3)]
    exact = [x.detach().float().requires_grad_() for x in wholes]
    mine = [x.detach()[gridwise.local_slice(P, shape)].clone().requires_grad_() for x in wholes]
    model = gridwise.distribute(lambda q, k, v: attend(q * 1, k * 1, v * 1, is_causal=True), P)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast):
        y, theirs = model(*mine), attend(*wholes, is_causal=True)
    assert y.dtype == theirs.dtype
    expected = attend(*exact, is_causal=True)
    own = gridwise.local_slice(P, shape)
    y.backward(torch.ones_like(y))
    expected.backward(torch.ones_like(expected))
    eps = torch.finfo(y.dtype).eps
    for got, whole in [(y, expected), *((x.grad, e.grad) for x, e in zip(mine, exact, strict=True))]:
        torch.testing.assert_close(got.float(), whole[own], rtol=4 * eps, atol=4 * eps)
