"""Which elementwise operators compute a block with the same bits as the whole tensor.

Torch computes most of a tensor with vector instructions, and the remainder at its end and at the end of each thread's
share with scalar ones. The two agree

    where IEEE 754 defines the result: sums, products, quotients, square roots, comparisons, casts
    for functions whose remainder torch computes with vectors too; `function_holds` tests that once per process

The others (sigmoid, sinh, pow, ...) may differ in the last bit, so their blocks are cut from the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from gridwise.deferred_init.recording.tape import External, TapeNode, Value
from gridwise.torch_internals.operators import OpOverload, name_of, overload_of

_MOVES = frozenset({"fill", "zero", "copy", "clone", "_to_copy", "neg", "where", "masked_fill"})
_EXACT = _MOVES | {
    "add", "sub", "rsub", "mul", "div", "abs", "sqrt", "reciprocal", "clamp", "clamp_min", "clamp_max", "minimum",
    "maximum", "floor", "ceil", "trunc", "sign", "relu", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "logical_not",
    "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor",
}  # fmt: skip
_FUNCTIONS = frozenset(
    {"exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "tanh", "erf", "erfc", "erfinv"}
)


def keeps_bits(node: TapeNode) -> bool:
    """Whether an elementwise node gives each element the same bits, however the tensor is cut."""
    assert isinstance(node.func, OpOverload)
    name = name_of(node.func).removeprefix("aten::").removesuffix("_")
    tensors = [_meta(item) for item in (*node.args, *node.kwargs.values()) if isinstance(item, Value | External)]
    if any(tensor.is_complex() for tensor in tensors):
        return name in _MOVES
    if name in ("add", "sub", "rsub"):
        return all(factor == 1 for factor in (*node.args[2:], *node.kwargs.values()))  # `alpha` adds a product
    if name == "div":
        return not overload_of(node.func).endswith("_mode")
    if name in _FUNCTIONS:
        return tensors[0].is_contiguous() and function_holds(name, tensors[0].dtype)
    return name in _EXACT


def _meta(item: Value | External) -> Tensor:
    return item.meta if isinstance(item, Value) else item.tensor


@cache
def function_holds(name: str, dtype: torch.dtype) -> bool:
    """Whether a function gives the same bits on pieces of any length on this processor."""
    if not dtype.is_floating_point:
        return False
    function: Callable[[Tensor], Tensor] = getattr(torch, name)
    generator = torch.Generator().manual_seed(3)
    values = torch.empty(8192, device="cpu").uniform_(-1, 1, generator=generator)
    values[::2] *= 0.03
    values[1::4] += 1
    values = values.to(dtype)
    whole, begin, length = function(values), 0, 1
    while begin < len(values):
        piece = function(values[begin : begin + length].clone())
        if not torch.equal(piece.nan_to_num(), whole[begin : begin + length].nan_to_num()):
            return False
        begin, length = begin + length, length % 67 + 1
    return True
