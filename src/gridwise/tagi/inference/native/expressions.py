"""The values of a recorded step: which are expressions, which have memory of their own, and the loops that fill it.

A value is computed where it is used. It gets memory of its own if several operators use it, if a sum, a product or a
copy needs it, or if memory that it reads is about to be overwritten. What each operator does is in `lowering.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .operators import COMPARISONS, ELEMENTWISE
from .recording import Recorded, tensors_in
from .values import (
    C_TYPES,
    Buffer,
    Const,
    Formula,
    Indexed,
    Load,
    NotNativeError,
    Shape,
    StridedValue,
    Tree,
    broadcast,
    contiguous,
    loads,
)

LARGEST_CONSTANT = 4096
"""The most numbers of a tensor that is written into the program."""


class Loop(NamedTuple):
    """target = tree for all indices of `shape`; with `reduced` dims, their sum or maximum.

    A target of None is a check: the indices in `tree` must be less than `limit`.
    """

    shape: Shape
    target: Load | Indexed | None
    dtype: torch.dtype
    tree: Tree
    reduced: Shape = ()
    kind: str = "+"
    limit: int = 0


class Expressions:
    """Base of `StepLoops`: values, memory, and operators that work element by element."""

    def __init__(self, given: Sequence[Tensor], recorded: Recorded) -> None:
        self.loops: list[Loop] = []
        self.buffers: list[Buffer] = []
        self._values: dict[int, StridedValue] = {}
        self._uses, self._tensors = recorded.uses(), recorded.tensors()
        for place, tensor in enumerate(given):
            buffer = self._new_buffer(tensor.dtype, tensor.numel(), place)
            strides = tuple(s if n != 1 else 0 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
            self._values[id(tensor)] = StridedValue(tuple(tensor.shape), tensor.dtype, Load(buffer, 0, strides))
        for call in recorded.calls:
            self._lower(*call)
        self.outputs = len(recorded.outputs)
        for place, tensor in enumerate(recorded.outputs):
            value = self._of(tensor)
            out = self._new_buffer(value.dtype, math.prod(value.shape), len(given) + place)
            self._emit(value, Load(out, 0, contiguous(value.shape)))

    # ---- values -----------------------------------------------------------------------------------------------------
    def _new_buffer(self, dtype: torch.dtype, numel: int, place: int = -1, data: object = None) -> Buffer:
        if dtype not in C_TYPES or numel == 0:
            raise NotNativeError(f"a tensor of {numel} values of {dtype}")
        self.buffers.append(Buffer(len(self.buffers), dtype, numel, place, data))
        return self.buffers[-1]

    def _of(self, x: Any) -> StridedValue:
        """The value of a tensor; one that the step has not made is a constant."""
        value = self._values.get(id(x))
        if value is None:
            if x.numel() > LARGEST_CONSTANT:
                raise NotNativeError(f"a constant of {x.numel()} numbers")
            buffer = self._new_buffer(x.dtype, x.numel(), data=x.detach().reshape(-1).tolist())
            value = self._values[id(x)] = StridedValue(
                tuple(x.shape), x.dtype, Load(buffer, 0, contiguous(tuple(x.shape)))
            )
        return value

    def _emit(self, value: StridedValue, target: Load | Indexed) -> None:
        self.loops.append(Loop(value.shape, target, value.dtype, value.tree))

    def _stored(self, value: StridedValue) -> StridedValue:
        """The value in memory of its own."""
        target = Load(self._new_buffer(value.dtype, math.prod(value.shape)), 0, contiguous(value.shape))
        self._emit(value, target)
        return StridedValue(value.shape, value.dtype, target)

    def _in_memory(self, value: StridedValue) -> StridedValue:
        return value if isinstance(value.tree, Load) else self._stored(value)

    def _set(self, out: Tensor, value: StridedValue) -> None:
        """`out` is `value`, which is stored now if several operators use it."""
        several = self._uses.get(id(out), 0) > 1
        is_work = isinstance(value.tree, Formula | Indexed)
        self._values[id(out)] = self._stored(value) if several and is_work else value

    def _write(self, x: Tensor, value: StridedValue) -> None:
        """`x` becomes `value` in place; what still refers to its memory as it was is stored before."""
        own = self._of(x)
        if not isinstance(own.tree, Load):
            own = self._values[id(x)] = self._stored(own)
            if self._is_shared(x):
                raise NotNativeError("a view of an intermediate result that changes")
        assert isinstance(own.tree, Load)
        target = own.tree
        for key, other in self._values.items():
            pending = key != id(x) and self._uses.get(key, 0) and not isinstance(other.tree, Load)
            if pending and any(load.buffer is target.buffer for load in loads(other.tree)):
                self._values[key] = self._stored(other)
        value = broadcast(value, own.shape)
        if any(load.buffer is target.buffer and load != target for load in loads(value.tree)):
            value = self._stored(value)
        self._emit(StridedValue(own.shape, own.dtype, self._cast(value, own.dtype)), target)

    def _is_shared(self, x: Tensor) -> bool:
        """Whether another value that is still needed lies in the memory of `x`."""
        here = x.untyped_storage().data_ptr()
        others = (other for key, other in self._tensors.items() if key != id(x) and self._uses.get(key, 0))
        return any(other.untyped_storage().data_ptr() == here for other in others)

    # ---- operators --------------------------------------------------------------------------------------------------
    def _lower(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if not tensors_in((args, kwargs, out)):
            return  # a question about types
        if name.startswith("_foreach_"):
            self._each(name.removeprefix("_foreach_"), args, out)
        elif (special := getattr(self, f"_do_{name}", None)) is not None:
            special(args, kwargs, out)
        elif name.endswith("_"):
            self._write(args[0], self._elementwise(name[:-1], args, kwargs, args[0]))
        else:
            self._set(out, self._elementwise(name, args, kwargs, out))
        for x in tensors_in((args, kwargs)):
            if id(x) in self._uses:
                self._uses[id(x)] -= 1

    def _each(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        for k, first in enumerate(args[0]):
            rest = [part[k] if isinstance(part, list | tuple) else part for part in args[1:]]
            if name.endswith("_"):
                self._write(first, self._elementwise(name[:-1], (first, *rest), {}, first))
            else:
                self._set(out[k], self._elementwise(name, (first, *rest), {}, out[k]))

    def _elementwise(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], out: Tensor) -> StridedValue:
        if name in ("add", "sub", "rsub") and (alpha := kwargs.get("alpha", 1)) != 1:
            args = (args[0], self._elementwise("mul", (args[1], alpha), {}, out))
        if name == "pow" and args[1] == 2:
            name, args = "mul", (args[0], args[0])
        if name in ("bitwise_and", "bitwise_or", "bitwise_not") and out.dtype != torch.bool:
            raise NotNativeError(f"{name} of integers")
        if name == "addcmul" and kwargs.get("value", 1) != 1:
            raise NotNativeError("addcmul with a factor")
        code = ELEMENTWISE.get(name) or COMPARISONS.get(name)
        if code is None or out.dtype not in C_TYPES:
            raise NotNativeError(f"the operator {name}")
        first = next(x for x in args if isinstance(x, Tensor | StridedValue))
        wide = out.dtype if name in ELEMENTWISE else self._common(args, first)
        shape = tuple(out.shape)
        operands = tuple(self._operand(x, shape, wide) for x in args)
        return StridedValue(shape, out.dtype, Formula(typed(code, out.dtype), operands))

    def _common(self, args: Sequence[Any], first: Any) -> torch.dtype:
        """The type that a comparison is made in."""
        wide = first.dtype
        for x in args:
            wide = torch.promote_types(wide, x.dtype) if isinstance(x, Tensor | StridedValue) else wide
        return torch.float64 if wide == torch.int64 and any(isinstance(x, float) for x in args) else wide

    def _operand(self, x: Any, shape: Shape, dtype: torch.dtype) -> Tree:
        if not isinstance(x, Tensor | StridedValue):
            return number(x, dtype)
        return self._cast(broadcast(x if isinstance(x, StridedValue) else self._of(x), shape), dtype)

    def _cast(self, value: StridedValue, dtype: torch.dtype) -> Tree:
        return value.tree if value.dtype == dtype else Formula(f"(({C_TYPES[dtype]}){{0}})", (value.tree,))

    def _do_where(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        shape = tuple(out.shape)
        condition = self._operand(args[0], shape, torch.bool)
        chosen = (self._operand(x, shape, out.dtype) for x in args[1:])
        self._set(out, StridedValue(shape, out.dtype, Formula("({0} ? {1} : {2})", (condition, *chosen))))

    def _do_clamp(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        low, high = (*args[1:], None, None)[:2]
        made = self._of(args[0]) if low is None else self._elementwise("clamp_min", (args[0], low), {}, out)
        self._set(out, made if high is None else self._elementwise("clamp_max", (made, high), {}, out))


def number(x: float, dtype: torch.dtype) -> Const:
    """A number in C++, of type `dtype`."""
    if not isinstance(x, bool | int | float):
        raise NotNativeError(f"{x!r} in place of a number")
    text = repr(x) if math.isfinite(x) else ("NAN" if math.isnan(x) else "INFINITY" if x > 0 else "-INFINITY")
    return Const(f"{C_TYPES[dtype]}({text.lower() if isinstance(x, bool) else text})")


def typed(code: str, dtype: torch.dtype) -> str:
    name = C_TYPES[dtype]
    return f"({name})({code.replace('T(', name + '(')})"
