"""Names and schemas of operators, those that torch composes of others, and which autocast has a kernel of."""

from __future__ import annotations

import pytest
import torch

from gridwise.torch_internals.operators import (
    OpOverload,
    OpOverloadPacket,
    assert_async,
    asserted,
    composite_operators,
    is_cast_by_autocast,
    is_flash_attention,
    kernels_of_nn,
    name_of,
    overload_of,
    safe_softmax,
    schema_of,
)


def test_operators_have_names_and_schemas() -> None:
    add, addition = torch.ops.aten.add.Tensor, torch.ops.aten.add
    assert isinstance(add, OpOverload)
    assert isinstance(addition, OpOverloadPacket)
    assert (name_of(add), overload_of(add)) == ("aten::add", "Tensor")
    assert (name_of(torch.ops.aten.relu.default), overload_of(torch.ops.aten.relu.default)) == ("aten::relu", "default")
    assert name_of(addition) == "aten::add"
    schema = schema_of(add)
    assert schema.name == name_of(add)
    assert [argument.name for argument in schema.arguments] == ["self", "other", "alpha"]
    assert (schema.arguments[2].default_value, schema.arguments[2].kwarg_only) == (1, True)
    assert [str(each.type) for each in schema.returns] == ["Tensor"]
    assert not schema.is_mutable
    (written,) = [a for a in schema_of(torch.ops.aten.add_.Tensor).arguments if a.alias_info and a.alias_info.is_write]
    assert written.name == "self"
    assert [a.name for a in schema_of(torch.ops.aten.add.out).arguments if a.is_out] == ["out"]


def test_composite_operators_are_known() -> None:
    aten, found = torch.ops.aten, composite_operators()
    assert all(isinstance(op, OpOverload) for op in found)
    assert {aten.conv2d.default, aten.einsum.default, aten.matmul.default, aten.lstm.input} <= set(found)
    assert not {aten.add.Tensor, aten.convolution.default, aten.relu.default} & set(found)


def test_operators_that_autocast_casts_are_known_while_it_is_on() -> None:
    matmul, relu = torch.ops.aten.matmul.default, torch.ops.aten.relu.default
    assert not is_cast_by_autocast(matmul)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert is_cast_by_autocast(matmul)
        assert not is_cast_by_autocast(relu)


def test_kernels_are_those_of_the_functions() -> None:
    x, w = torch.randn(2, 3, 8, 8), torch.randn(5, 8)
    nn = torch.nn.functional
    torch.testing.assert_close(kernels_of_nn.linear(x, w, None), nn.linear(x, w))
    torch.testing.assert_close(kernels_of_nn.gelu(x), nn.gelu(x))
    torch.testing.assert_close(kernels_of_nn.silu(x), nn.silu(x))
    torch.testing.assert_close(kernels_of_nn.adaptive_avg_pool2d(x, (2, 3)), nn.adaptive_avg_pool2d(x, (2, 3)))
    for mine, other in (
        (kernels_of_nn.max_pool2d_with_indices(x, 2), nn.max_pool2d(x, 2, return_indices=True)),
        (kernels_of_nn.max_pool3d_with_indices(x, 2), nn.max_pool3d(x, 2, return_indices=True)),
        (kernels_of_nn.adaptive_max_pool2d(x, 2), nn.adaptive_max_pool2d(x, 2, return_indices=True)),
        (kernels_of_nn.adaptive_max_pool3d(x, 2), nn.adaptive_max_pool3d(x, 2, return_indices=True)),
    ):
        torch.testing.assert_close(mine, other)


def test_a_softmax_of_nothing_is_zero() -> None:
    x = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]])
    assert safe_softmax(x, -1).tolist() == [[0.5, 0.5], [0.0, 0.0]]


def test_the_kernel_of_an_attention_is_known() -> None:
    q = torch.randn(1, 1, 4, 8)
    assert is_flash_attention(q, q, q, True)
    assert not is_flash_attention(q.double(), q.double(), q[..., :5].double(), True)


def test_assertions_at_once_and_on_the_device() -> None:
    asserted(torch.tensor(True), "")
    with pytest.raises(AssertionError, match="no"):
        asserted(torch.tensor(False), "no")
    assert_async(torch.tensor(True))
    with pytest.raises(RuntimeError):
        assert_async(torch.tensor(False))
