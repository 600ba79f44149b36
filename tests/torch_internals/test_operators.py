"""Names and schemas of operators, those that torch composes of others, and which autocast has a kernel of."""

from __future__ import annotations

import torch

from gridwise.torch_internals.operators import OpOverload, OpOverloadPacket, name_of, overload_of, schema_of


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
