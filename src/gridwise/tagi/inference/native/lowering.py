"""A recorded step as loops: one for every value that has to be in memory, in the order of the recording.

Here is what each operator does that does not work element by element (`operators.py`): `_do_<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .expressions import Expressions, Loop, number, typed
from .operators import ELEMENTWISE
from .values import (
    Formula,
    Indexed,
    Load,
    NotNativeError,
    StridedValue,
    arranged,
    broadcast,
    contiguous,
    reshaped,
    selected,
    sliced,
)


class StepLoops(Expressions):
    """The loops of a recorded step on arguments `given`."""

    # ---- views ------------------------------------------------------------------------------------------------------
    def _do_view(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        value, shape = self._of(args[0]), tuple(out.shape)
        made = reshaped(value, shape)
        if made is None:
            self._values[id(args[0])] = value = self._stored(value)
            made = reshaped(value, shape)
            assert made is not None
        self._set(out, made)

    _do__unsafe_view = _do_reshape = _do_view

    def _do_unsqueeze(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        value, at = self._of(args[0]), args[1] % (out.ndim)
        dims = list(range(out.ndim - 1))
        self._set(out, arranged(value, tuple(out.shape), [*dims[:at], None, *dims[at:]]))

    def _do_squeeze(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._do_view(args, kwargs, out)

    def _do_expand(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._set(out, broadcast(self._of(args[0]), tuple(out.shape)))

    def _do_permute(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._set(out, arranged(self._of(args[0]), tuple(out.shape), [d % out.ndim for d in args[1]]))

    def _do_t(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._set(out, arranged(self._of(args[0]), tuple(out.shape), list(range(out.ndim))[::-1]))

    def _do_transpose(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        dims = list(range(out.ndim))
        dims[args[1]], dims[args[2]] = dims[args[2]], dims[args[1]]
        self._set(out, arranged(self._of(args[0]), tuple(out.shape), dims))

    def _do_select(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        value = self._of(args[0])
        dim = args[1] % len(value.shape)
        self._set(out, selected(value, dim, args[2] % value.shape[dim]))

    def _do_unbind(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Sequence[Tensor]) -> None:
        value = self._of(args[0])
        dim = (args[1] if len(args) > 1 else 0) % len(value.shape)
        value = self._once(args[0], value)
        for index, part in enumerate(out):
            self._set(part, selected(value, dim, index))

    def _do_split(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Sequence[Tensor]) -> None:
        value = self._once(args[0], self._of(args[0]))
        dim = (args[2] if len(args) > 2 else 0) % len(value.shape)
        start = 0
        for part in out:
            self._set(part, sliced(value, dim, start, 1, part.shape[dim]))
            start += part.shape[dim]

    _do_split_with_sizes = _do_split

    def _once(self, x: Tensor, value: StridedValue) -> StridedValue:
        """A value whose parts are used apart from one another, computed only once."""
        if isinstance(value.tree, Formula):
            value = self._values[id(x)] = self._stored(value)
        return value

    def _do_slice(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        value, rest = self._of(args[0]), (*args[1:], *(0, None, None, 1)[len(args) - 1 :])
        dim, start, end, step = rest[0] % len(value.shape), *rest[1:]
        first, _, stride = slice(start, end, step).indices(value.shape[dim])
        self._set(out, sliced(value, dim, first, stride, out.shape[dim]))

    def _do_alias(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._set(out, self._of(args[0]))

    _do_detach = _do_lift_fresh = _do_alias

    def _do_clone(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._values[id(out)] = self._stored(self._of(args[0]))

    # ---- new tensors ------------------------------------------------------------------------------------------------
    def _filled(self, out: Tensor, value: float) -> None:
        self._set(out, StridedValue(tuple(out.shape), out.dtype, number(value, out.dtype)))

    def _do_zeros_like(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._filled(out, 0)

    _do_new_zeros = _do_zeros = _do_zeros_like

    def _do_ones_like(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._filled(out, 1)

    _do_ones = _do_new_ones = _do_ones_like

    def _do_full(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._filled(out, args[1])

    _do_full_like = _do_new_full = _do_full

    def _do_scalar_tensor(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._filled(out, args[0])

    def _do_cat(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        dim, start = (args[1] if len(args) > 1 else 0) % out.ndim, 0
        whole = self._new_value(out)
        for part in args[0]:
            value = self._of(part)
            place = sliced(whole, dim, start, 1, value.shape[dim]).tree
            assert isinstance(place, Load)
            self._emit(StridedValue(value.shape, out.dtype, self._cast(value, out.dtype)), place)
            start += value.shape[dim]
        self._values[id(out)] = whole

    def _do_stack(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        dim = (args[1] if len(args) > 1 else 0) % out.ndim
        whole = self._new_value(out)
        for index, part in enumerate(args[0]):
            value = self._of(part)
            place = selected(whole, dim, index).tree
            assert isinstance(place, Load)
            self._emit(StridedValue(value.shape, out.dtype, self._cast(value, out.dtype)), place)
        self._values[id(out)] = whole

    def _do_constant_pad_nd(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        whole, part = self._new_value(out), self._of(args[0])
        fill = args[2] if len(args) > 2 else 0
        self._emit(StridedValue(whole.shape, out.dtype, number(fill, out.dtype)), whole.tree)  # type: ignore[arg-type]
        inside = whole
        for k in range(len(args[1]) // 2):
            dim, before = out.ndim - 1 - k, args[1][2 * k]
            if before < 0 or args[1][2 * k + 1] < 0:
                raise NotNativeError("a negative padding")
            inside = sliced(inside, dim, before, 1, part.shape[dim])
        self._emit(part, inside.tree)  # type: ignore[arg-type]
        self._values[id(out)] = whole

    def _new_value(self, out: Tensor) -> StridedValue:
        shape = tuple(out.shape)
        buffer = self._new_buffer(out.dtype, out.numel())
        return StridedValue(shape, out.dtype, Load(buffer, 0, contiguous(shape)))

    # ---- places that depend on values -------------------------------------------------------------------------------
    def _place(self, source: StridedValue, dim: int, index: StridedValue) -> Indexed:
        """Where `index` points to along `dim`; checked before anything is read or written there."""
        assert isinstance(source.tree, Load)
        shape, dtype = index.shape, index.dtype
        self.loops.append(Loop(shape, None, dtype, index.tree, limit=source.shape[dim]))
        buffer, offset, strides = source.tree
        fixed = tuple(
            0 if d == dim or n == 1 else s for d, (s, n) in enumerate(zip(strides, source.shape, strict=True))
        )
        return Indexed(Load(buffer, offset, fixed), strides[dim], index.tree)

    def _do_gather(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        source, index = self._in_memory(self._of(args[0])), self._in_memory(self._of(args[2]))
        place = self._place(source, args[1] % len(source.shape), index)
        self._set(out, self._stored(StridedValue(tuple(out.shape), out.dtype, place)))

    def _do_index_select(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        source, index = self._in_memory(self._of(args[0])), self._in_memory(self._of(args[2]))
        dim = args[1] % len(source.shape)
        dims: list[int | None] = [0 if d == dim else None for d in range(len(source.shape))]
        place = self._place(source, dim, arranged(index, tuple(out.shape), dims))
        self._set(out, self._stored(StridedValue(tuple(out.shape), out.dtype, place)))

    def _do_scatter(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        whole, index = self._stored(self._of(args[0])), self._in_memory(self._of(args[2]))
        shape, source = index.shape, args[3]
        place = self._place(whole, args[1] % len(whole.shape), index)
        if isinstance(source, Tensor):
            part = self._of(source)
            for dim, size in enumerate(shape):
                part = sliced(part, dim, 0, 1, size)
            self._emit(StridedValue(shape, out.dtype, self._cast(part, out.dtype)), place)
        else:
            self._emit(StridedValue(shape, out.dtype, number(source, out.dtype)), place)
        self._values[id(out)] = whole

    # ---- sums and products ------------------------------------------------------------------------------------------
    def _reduce(
        self, value: StridedValue, dims: Sequence[int], out: Tensor, dtype: torch.dtype, kind: str = "+"
    ) -> StridedValue:
        count = len(value.shape)
        gone = sorted({d % count for d in dims}) if count else []
        kept = [d for d in range(count) if d not in gone]
        shape, reduced = tuple(value.shape[d] for d in kept), tuple(value.shape[d] for d in gone)
        tree = arranged(value, (*shape, *reduced), [*kept, *gone]).tree
        buffer = self._new_buffer(dtype, math.prod(shape))
        target = Load(buffer, 0, contiguous(shape))
        self.loops.append(
            Loop(shape, target, dtype, self._cast(StridedValue((), value.dtype, tree), dtype), reduced, kind)
        )
        made = reshaped(StridedValue(shape, dtype, target), tuple(out.shape))
        assert made is not None
        return made

    def _do_sum(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        value = self._of(args[0])
        dims = args[1] if len(args) > 1 and args[1] else range(len(value.shape))
        self._set(out, self._reduce(value, dims, out, out.dtype))

    def _do_mean(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        value = self._of(args[0])
        dims = args[1] if len(args) > 1 and args[1] else range(len(value.shape))
        total = self._reduce(value, dims, out, out.dtype)
        share = out.numel() / math.prod(value.shape)
        code = typed(ELEMENTWISE["mul"], out.dtype)
        self._set(out, StridedValue(total.shape, out.dtype, Formula(code, (total.tree, number(share, out.dtype)))))

    def _do_amax(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        value = self._of(args[0])
        self._set(out, self._reduce(value, args[1] or range(len(value.shape)), out, out.dtype, "larger"))

    def _do_amin(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        value = self._of(args[0])
        self._set(out, self._reduce(value, args[1] or range(len(value.shape)), out, out.dtype, "smaller"))

    def _product(self, a: StridedValue, b: StridedValue, out: Tensor) -> StridedValue:
        """(..., n, k) times (..., k, m)."""
        a, b = self._in_memory(a), self._in_memory(b)
        lead, (n, m), k = tuple(out.shape[:-2]), out.shape[-2:], a.shape[-1]
        batch = list(range(len(lead)))
        shape = (*lead, n, m, k)
        left = arranged(a, shape, [*batch, len(batch), None, len(batch) + 1])
        right = arranged(b, shape, [*batch, None, len(batch) + 1, len(batch)])
        terms = StridedValue(shape, out.dtype, Formula(typed(ELEMENTWISE["mul"], out.dtype), (left.tree, right.tree)))
        return self._reduce(terms, [len(shape) - 1], out, out.dtype)

    def _do_mm(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._set(out, self._product(self._of(args[0]), self._of(args[1]), out))

    _do_bmm = _do_mm

    def _do_addmm(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        if any(kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
            raise NotNativeError("a product with a factor")
        made = self._product(self._of(args[1]), self._of(args[2]), out)
        self._set(out, self._elementwise("add", (made, args[0]), {}, out))

    _do_baddbmm = _do_addmm

    def _do_addmm_(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        if any(kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
            raise NotNativeError("a product with a factor")
        made = self._product(self._of(args[1]), self._of(args[2]), out)
        self._write(args[0], self._elementwise("add", (made, args[0]), {}, out))

    _do_baddbmm_ = _do_addmm_
