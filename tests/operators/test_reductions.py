"""Reductions: collected over boxes, and with the reduced dims whole."""

from __future__ import annotations

import math

import pytest
import torch

from gridwise.operators import sums

from .contract import Case, check, check_case

X = (3, 4, 7, 6)
norm = torch.linalg.vector_norm
CASES: list[Case] = [
    ("sum", lambda x: x.sum(), (X,)),
    ("sum", lambda x: x.sum((0, -1)), (X,)),
    ("sum", lambda x: x.sum(1, keepdim=True, dtype=torch.float32), (X,)),
    ("sum", lambda x: (x > 0).sum((1, 2)), (X,)),
    ("sum", lambda x: x.sum(), ((),)),
    ("mean", lambda x: x.mean((2, 3), keepdim=True), (X,)),
    ("mean", lambda x: x.mean(), (X,)),
    ("nansum", lambda x: x.masked_fill(x > 1, math.nan).nansum((0, 2)), (X,)),
    ("any", lambda x: (x > 2).any(2), (X,)),
    ("all", lambda x: (x > -1).all(2, keepdim=True), (X,)),
    ("any", lambda x: (x > 2).any(), (X,)),
    ("count_nonzero", lambda x: (x > 0).count_nonzero((1, 3)), (X,)),
    ("linalg_vector_norm", lambda x: norm(x, dim=(1, 3)), (X,)),
    ("linalg_vector_norm", lambda x: norm(x.relu().floor(), dim=2, keepdim=True), (X,)),
    ("linalg_vector_norm", lambda x: norm(x, 1), (X,)),
    ("linalg_vector_norm", lambda x: norm(x, 3.5, (0, 1)), (X,)),
    ("linalg_vector_norm", lambda x: norm(x, math.inf, (0, 1)), (X,)),
    ("linalg_vector_norm", lambda x: norm(x, -math.inf, 2, True), (X,)),
    ("linalg_vector_norm", lambda x: norm(x, 0.5, 2), (X,)),
    ("linalg_vector_norm", lambda x: x.norm(dim=1), (X,)),
    ("linalg_vector_norm", lambda x: x.norm(), (X,)),
    ("var", lambda x: x.var((0, 2)), (X,)),
    ("std", lambda x: x.std(1, keepdim=True), (X,)),
    ("std", lambda x: x.std(), (X,)),
    ("var", lambda x: x.var((2, 3), correction=0, keepdim=True), (X,)),
    ("var_mean", lambda x: torch.var_mean(x, 3, unbiased=False), (X,)),
    ("std_mean", lambda x: torch.std_mean(x, (0, 1), keepdim=True), (X,)),
    ("dist", lambda x, y: torch.dist(x, y), (X, X)),
    ("trace", lambda x: torch.trace(x), ((6, 6),)),
    ("median", lambda x: x.median(2), (X,)),
    ("kthvalue", lambda x: x.kthvalue(2, 1, keepdim=True), (X,)),
    ("quantile", lambda x: x.quantile(0.3, 2), (X,)),
    ("quantile", lambda x: x.quantile(torch.tensor([0.3, 0.9], dtype=x.dtype), 2, True), (X,)),
    ("histc", lambda x: x.histc(7, -2.0, 2.0), (X,)),
    ("aminmax", lambda x: x.aminmax(dim=1), (X,)),
    ("amax", lambda x: x.amax((2, 3)), (X,)),
    ("amax", lambda x: x.round().amax((0, 3), keepdim=True), (X,)),
    ("amin", lambda x: x.masked_fill(x > 2, math.nan).amin(2), (X,)),
    ("amax", lambda x: (x * 9).long().amax((0, 1)), (X,)),
    ("amax", lambda x: (x > 1).amax((0, 1)), (X,)),
    ("max", lambda x: x.round().max(), (X,)),
    ("min", lambda x: x.min(), (X,)),
    ("max", lambda x: x.max(2), (X,)),
    ("max", lambda x: x.round().max(1, keepdim=True), (X,)),
    ("min", lambda x: x.masked_fill(x > 1, math.nan).min(2), (X,)),
    ("argmax", lambda x: x.round().argmax(1), (X,)),
    ("argmin", lambda x: x.argmin(), (X,)),
    ("logsumexp", lambda x: x.logsumexp((1, 2), keepdim=True), (X,)),
    ("logsumexp", lambda x: (x * 500).logsumexp(3), (X,)),
    ("prod", lambda x: x.prod(2), (X,)),
    ("prod", lambda x: x.masked_fill(x > 1.2, 0).prod(2, keepdim=True), (X,)),
    ("prod", lambda x: (x * 3).long().prod(), (X,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("is_collected", [True, False], ids=["collected", "whole"])
def test_reductions(case: Case, is_collected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_collected:
        monkeypatch.setattr(sums, "MANY", 0)
    check_case(case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_means_of_many_numbers(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.mean((1, 2)), x.std((1, 2)), x.norm(dim=(1, 2)), x.logsumexp((1, 2))

    found = check(function, torch.rand((2, 60, 70)).to(dtype))
    assert {"aten::mean", "aten::std", "aten::logsumexp"} <= found, found
