"""Norms on boxes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gridwise.operators.statistics import normalised

from .contract import Case, check, tensors_of

X, C = (3, 6, 7, 5), (6,)
NORMS: list[Case] = [
    ("batch_norm", lambda x, m, v, w, b: F.batch_norm(x, m, v + 2, w, b, False), (X, C, C, C, C)),
    ("batch_norm", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True, 0.3), (X, C, C, C, C)),
    ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), (X,)),
    ("batch_norm", lambda x, w: F.batch_norm(x, None, None, w, training=True), ((9, 6), C)),
    ("batch_norm", lambda x, b: F.batch_norm(x, None, None, None, b, training=True, eps=0.1), ((2, 6, 3, 4, 5), C)),
    ("instance_norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (X, C, C)),
    ("instance_norm", lambda x, m, v: F.instance_norm(x, m, v, momentum=0.2), (X, C, C)),
    ("instance_norm", lambda x, m, v: F.instance_norm(x, m, v + 3, use_input_stats=False), (X, C, C)),
    ("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), (X, C, C)),
    ("group_norm", lambda x: F.group_norm(x, 6), (X,)),
    ("group_norm", lambda x, w, b: F.group_norm(x, 1, w, b, 0.01), ((2, 6, 9), C, C)),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, (5,), w, b), (X, (5,), (5,))),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, (6, 7, 5), w, b), (X, (6, 7, 5), (6, 7, 5))),
    ("layer_norm", lambda x, w: F.layer_norm(x, (7, 5), w, None, 0.1), (X, (7, 5))),
    ("rms_norm", lambda x, w: F.rms_norm(x, (7, 5), w), (X, (7, 5))),
    ("rms_norm", lambda x: F.rms_norm(x, (5,)), (X,)),
]


@pytest.mark.parametrize("case", NORMS)
def test_norms(case: Case) -> None:
    name, function, shapes = case
    assert f"aten::{name}" in check(function, *tensors_of(shapes), rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_are_summed_in_enough_precision(dtype: torch.dtype) -> None:
    """The mean is a thousand times the standard deviation."""
    x = (torch.randn(2, 4, 40, 40) + 100).to(dtype)
    check(lambda x: F.group_norm(x, 2), x, rtol=1e-3)


def test_statistics_that_are_not_contiguous() -> None:
    """Torch's backward on a CPU would read its neighbours in memory."""
    x, *parameters = tensors_of([(1, 5, 1), *[(5, 4)] * 4])
    x, *rows = (each.requires_grad_() for each in (x, *(parameter.abs()[:, 2] for parameter in parameters)))
    weight, bias, mean, var = (row.view(-1, 1) for row in rows)
    expected = (x - mean) / (var + 0.1).sqrt() * weight + bias
    y = normalised(x, *rows, 0.1)
    torch.testing.assert_close(y, expected)
    wanted = [x, *rows]
    got, other = (torch.autograd.grad(each, wanted, x.detach()) for each in (y, expected))
    torch.testing.assert_close(got, other)
