"""Torch's functions take the arguments of their operators, and compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from gridwise.operators.functions import _FUNCTIONS, function_of

aten = torch.ops.aten


def arguments(op: OpOverload) -> tuple[list[Any], dict[str, Any]]:
    """Some for each operator, none of them the default where that would hide a wrong order."""
    torch.manual_seed(0)
    x, y = torch.rand(2, 4, 9, 9), torch.rand(2, 4, 9, 9) + 1
    channels = [torch.rand(4) + 0.5 for _ in range(4)]
    convolution = [[2], [1], [3], 2]
    of_operator: dict[OpOverload, tuple[list[Any], dict[str, Any]]] = {
        aten.batch_norm.default: ([x, *channels, True, 0.3, 1e-2, False], {}),
        aten.group_norm.default: ([x, 2, *channels[:2], 1e-2, False], {}),
        aten.layer_norm.default: ([x, [9], torch.rand(9), torch.rand(9), 1e-2, False], {}),
        aten.max_pool2d.default: ([x, [3, 2], [2, 1], [1, 0], [1, 2], True], {}),
        aten.cat.default: ([[x, y], 1], {}),
        aten.bmm.default: ([x[0], y[0]], {}),
        aten.softmax.int: ([x, 1, torch.float64], {}),
        aten.linear.default: ([x, torch.rand(3, 9), torch.rand(3)], {}),
        aten.gelu.default: ([x], {"approximate": "tanh"}),
        aten.adaptive_avg_pool2d.default: ([x, [3, 2]], {}),
        aten.scaled_dot_product_attention.default: ([x, y, x, None, 0.0, True], {"scale": 0.3, "enable_gqa": False}),
        aten.conv_transpose2d.input: (
            [x, torch.rand(4, 3, 2, 2), torch.rand(6), [3, 2], [1, 0], [1, 1], 2, [2, 1]],
            {},
        ),
    }
    for dims in (1, 2, 3):
        weight = torch.rand(4, 2, *(2,) * dims)
        given = [torch.rand(2, 4, *(9,) * dims), weight, channels[0], *convolution]
        of_operator[getattr(aten, f"conv{dims}d").default] = given, {}
    for name in ("add", "add_", "sub"):
        of_operator[getattr(aten, name).Tensor] = [x, y], {"alpha": 3}
    for name in ("mul", "div"):
        of_operator[getattr(aten, name).Tensor] = [x, y], {}
    of_operator[aten.matmul.default] = of_operator[aten.copy.default] = [x, y], {}
    return of_operator.get(op, ([x - 0.5], {}))


@pytest.mark.parametrize("op", list(_FUNCTIONS), ids=str)
def test_the_same_arguments_the_same_result(op: OpOverload) -> None:
    given, named = arguments(op)
    expected = op(*given, **named)
    given, named = arguments(op)  # some operators write
    found = function_of(op)(*given, **named)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_other_operators_are_called_as_they_are() -> None:
    assert function_of(aten.sin.default) is aten.sin.default


def test_a_copy_into_another_tensor_has_a_gradient() -> None:
    x, new = torch.zeros(2, 3, dtype=torch.float64), torch.ones(3, requires_grad=True)
    y = function_of(torch.ops.aten.copy.default)(x, new)
    assert y.dtype == torch.float64
    y.sum().backward()
    assert torch.equal(new.grad, torch.full((3,), 2.0))
