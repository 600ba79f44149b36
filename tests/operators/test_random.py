"""Random operators: the same numbers whatever the boxes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gridwise.grid import Box
from gridwise.operators.call import OperatorCall, TensorSpec
from gridwise.operators.random.drawing import dropout
from gridwise.operators.random.random_stream import RandomStream

from .contract import Case, check_case

X = (3, 4, 7, 6)
aten = torch.ops.aten
CASES: list[Case] = [
    ("dropout", lambda x: F.dropout(x, 0.4), (X,)),
    ("feature_dropout", lambda x: F.dropout2d(x, 0.4), (X,)),
    ("native_dropout", lambda x: torch.native_dropout(x, 0.5, True), (X,)),
    ("native_dropout", lambda x: torch.native_dropout(x, 0.5, False), (X,)),
    ("bernoulli", lambda x: torch.bernoulli(x.sigmoid()), (X,)),
    ("bernoulli", lambda x: aten.bernoulli.p(x, 0.3), (X,)),
    ("rand", lambda x: torch.rand(5, 7, dtype=torch.float64) * x, ((7,),)),
    ("randn", lambda x: torch.randn(5, 7) * x, ((7,),)),
    ("randint", lambda x: torch.randint(-2, 9, (5, 7)) * x, ((7,),)),
    ("randperm", lambda x: torch.randperm(7) * x, ((7,),)),
    ("rand_like", lambda x: torch.rand_like(x), (X,)),
    ("randn_like", lambda x: torch.randn_like(x, dtype=torch.float32), (X,)),
    ("randint_like", lambda x: torch.randint_like(x, 1, 9), (X,)),
    ("uniform", lambda x: aten.uniform(x, -2.0, 3.0), (X,)),
    ("normal_functional", lambda x: aten.normal_functional(x, -2.0, 3.0), (X,)),
    ("normal", lambda x, y: torch.normal(x, y.abs()), ((7, 6), (6,))),
    ("normal", lambda x: torch.normal(x), (X,)),
    ("normal", lambda x: torch.normal(1.0, x.abs()), (X,)),
    ("exponential", lambda x: aten.exponential(x, 2.0), (X,)),
    ("cauchy", lambda x: aten.cauchy(x, 1.0, 2.0), (X,)),
    ("geometric", lambda x: aten.geometric(x, 0.3), (X,)),
    ("log_normal", lambda x: aten.log_normal(x, 1.0, 0.5), (X,)),
    ("random", lambda x: aten.random(x, 9), (X,)),
    ("multinomial", lambda x: x.abs().multinomial(4), ((5, 7),)),
    ("multinomial", lambda x: x.abs().multinomial(9, True), ((5, 7),)),
    ("rrelu", lambda x: F.rrelu(x, 0.1, 0.4, True), (X,)),
    ("rrelu", lambda x: F.rrelu(x, 0.1, 0.4), (X,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_random(case: Case) -> None:
    check_case(case)


def test_dropout_drops_a_share_and_scales_the_rest() -> None:
    spec = TensorSpec((200, 100), torch.float32, torch.device("cpu"))
    made = dropout(OperatorCall(torch.ops.aten.dropout.default, (spec, 0.25, True), {}, (spec,)))
    y = made.run(RandomStream(3), Box.of_shape(spec.shape), torch.ones(spec.shape))
    assert abs((y == 0).double().mean() - 0.25) < 0.02
    assert torch.allclose(y[y != 0], torch.tensor(4 / 3))
