"""Attention, on boxes of its queries."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gridwise.grid import Box
from gridwise.operators.attention import AttentionSpec

from .contract import Case, check_case

Q, K, V = (2, 4, 9, 6), (2, 4, 7, 6), (2, 4, 7, 5)
attend = F.scaled_dot_product_attention
CASES: list[Case] = [
    ("scaled_dot_product_attention", function, shapes)
    for function, shapes in [
        (lambda q, k, v: attend(q, k, v), (Q, K, V)),
        (lambda q, k, v: attend(q, k, v, scale=0.3), (Q[2:], K[2:], V[2:])),
        (lambda q, k, v: attend(q, k, v, is_causal=True), (Q, K, V)),
        (lambda q, k, v: attend(q, k, v, is_causal=True), (K, Q, (2, 4, 9, 5))),
        (lambda q, k, v, m: attend(q, k, v, m), (Q, K, V, (4, 9, 7))),
        (lambda q, k, v, m: attend(q, k, v, m), (Q, K, V, (2, 1, 1, 7))),
        (lambda q, k, v, m: attend(q, k, v, (m > 0) | (torch.arange(7) == 2)), (Q, K, V, (9, 7))),
        (lambda q, k, v: attend(q, k, v, enable_gqa=True), ((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4))),
        (lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True), ((6, 5, 4), (3, 5, 4), (3, 5, 4))),
        (lambda q, k, v: attend(q, k, v, dropout_p=0.4), (Q, K, V)),
        (lambda q, k, v: attend(q, k, v, dropout_p=0.4, is_causal=True), (Q, K, V)),
        (
            lambda q, k, v, m: attend(q, k, v, m, 0.4, enable_gqa=True),
            ((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4), (5, 7)),
        ),
    ]
]


@pytest.mark.parametrize("case", CASES)
def test_attention(case: Case) -> None:
    check_case(case)


def test_causal_queries_need_the_keys_before_them() -> None:
    spec = AttentionSpec(*[(2, 1, 800, 3)] * 3, None, 1.0, True, 1, 0.0)
    query, key, value = spec.needs(Box((0, 0, 200, 0), (1, 1, 400, 3)))
    assert query == Box((0, 0, 200, 0), (1, 1, 400, 3))
    assert key == value == Box((0, 0, 0, 0), (1, 1, 512, 3))
