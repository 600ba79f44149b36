"""Loops as C++: neighbours of one shape become one loop, and memory is planned.

group     consecutive elementwise loops of one shape, each value used by the next at the same place
memory    intermediate results that only their group uses are local variables; the others share a workspace, where a
          buffer takes the place of one that is not needed any more
order     the innermost dim is the one along which most accesses are neighbours, so that the compiler vectorises it;
          for a sum over another dim the sums of that whole innermost dim are kept, otherwise only one
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from .expressions import Loop
from .operators import EPOCH, PRELUDE
from .values import C_TYPES, Buffer, Const, Formula, Indexed, Load, NotNativeError, Shape, Tree, is_indexed, loads

MOST_SUMS = 4096
"""The longest innermost dim whose sums are kept at the same time."""

ALIGNMENT = 64


class LoopGroup(list[Loop]):
    """Loops that become one."""

    @property
    def shape(self) -> Shape:
        return self[0].shape

    def accesses(self) -> Iterator[Load]:
        for loop in self:
            yield from loads(loop.tree)
            if loop.target is not None:
                yield from loads(loop.target)

    def takes(self, new: Loop) -> bool:
        """Whether `new` may run in the same loop, index by index."""
        if not self or any(_stands_alone(loop) for loop in (self[-1], new)) or new.shape != self.shape:
            return False
        written = {loop.target.buffer: loop.target for loop in self if isinstance(loop.target, Load)}
        if any(load.buffer in written and load != written[load.buffer] for load in loads(new.tree)):
            return False
        assert isinstance(new.target, Load)
        return all(load.buffer is not new.target.buffer or load == new.target for load in self.accesses())


def _stands_alone(loop: Loop) -> bool:
    return bool(loop.reduced) or not isinstance(loop.target, Load) or is_indexed(loop.tree)


def grouped(loops: Iterable[Loop]) -> list[LoopGroup]:
    groups: list[LoopGroup] = []
    for loop in loops:
        if groups and groups[-1].takes(loop):
            groups[-1].append(loop)
        else:
            groups.append(LoopGroup([loop]))
    return groups


# ---- memory ----------------------------------------------------------------------------------------------------------
class WorkspacePlan:
    """Where each buffer lies: `local` ones in variables, the others at an offset of the workspace of `size` bytes."""

    def __init__(self, groups: Sequence[LoopGroup]) -> None:
        used: dict[Buffer, list[int]] = {}
        for number, group in enumerate(groups):
            for load in group.accesses():
                if load.buffer.is_scratch:
                    used.setdefault(load.buffer, []).append(number)
        self.local = {buffer for buffer, at in used.items() if at[0] == at[-1] and not _stands_alone(groups[at[0]][0])}
        self.offset: dict[Buffer, int] = {}
        self.size = 0
        for buffer in sorted(used.keys() - self.local, key=lambda b: (used[b][0], b.number)):
            self.offset[buffer] = self._free_place(buffer, used)

    def _free_place(self, buffer: Buffer, used: dict[Buffer, list[int]]) -> int:
        """The first place that is free from the first to the last use of a buffer."""
        first, last = used[buffer][0], used[buffer][-1]
        taken = sorted(
            (at, at + _bytes(other))
            for other, at in self.offset.items()
            if used[other][0] <= last and used[other][-1] >= first
        )
        place = 0
        for start, end in taken:
            if place + _bytes(buffer) <= start:
                break
            place = max(place, end)
        self.size = max(self.size, place + _bytes(buffer))
        return place


def _bytes(buffer: Buffer) -> int:
    return -(-buffer.numel * buffer.dtype.itemsize // ALIGNMENT) * ALIGNMENT


# ---- C++ -------------------------------------------------------------------------------------------------------------
def program(groups: Sequence[LoopGroup], memory: WorkspacePlan) -> str:
    """C++ of all groups, and of `tagi_step`, which runs them and returns whether all indices were in range."""
    lines = [PRELUDE]
    for buffer in {load.buffer: None for group in groups for load in group.accesses() if load.buffer.data is not None}:
        lines.append(_constant(buffer))
    for number, group in enumerate(groups):
        checks = group[0].target is None
        lines.append(
            f"static __attribute__((noinline)) {'bool' if checks else 'void'} g{number}(char* w, char* const* t) {{"
        )
        lines += _pointers(group, memory)
        lines += _check(group[0]) if checks else _loop_nest(group, memory)
        lines.append("}")
    lines.append('extern "C" int32_t tagi_step(char* w, char* const* t) {')
    for number, group in enumerate(groups):
        lines.append(f"  if (!g{number}(w, t)) return 0;" if group[0].target is None else f"  g{number}(w, t);")
    return "\n".join([*lines, "  return 1;", "}", EPOCH])


def _constant(buffer: Buffer) -> str:
    values = ", ".join(str(value).lower() if isinstance(value, bool) else repr(value) for value in buffer.data)  # type: ignore[attr-defined]
    if "inf" in values or "nan" in values:
        raise NotNativeError("a constant that is not finite")
    return f"static const {C_TYPES[buffer.dtype]} b{buffer.number}[] = {{{values}}};"


def _pointers(group: LoopGroup, memory: WorkspacePlan) -> Iterator[str]:
    for buffer in {load.buffer: None for load in group.accesses()}:
        if buffer.data is None and buffer not in memory.local:
            kind = C_TYPES[buffer.dtype]
            at = f"t[{buffer.place}]" if buffer.place >= 0 else f"(w + {memory.offset[buffer]})"
            yield f"  {kind}* __restrict b{buffer.number} = ({kind}*){at};"


def _text(tree: Tree, names: Sequence[str], known: dict[Buffer, str]) -> str:
    """An expression in C++, at the indices `names`; the values of `known` buffers are in variables."""
    if isinstance(tree, Const):
        return tree.text
    if isinstance(tree, Formula):
        return "(" + tree.code.format(*(_text(part, names, known) for part in tree.arguments)) + ")"
    load, more = (tree.load, tree) if isinstance(tree, Indexed) else (tree, None)
    if load.buffer in known:
        return known[load.buffer]
    terms = [
        f"{stride} * {name}" if stride != 1 else name
        for name, stride in zip(names, load.strides, strict=True)
        if stride
    ]
    if more is not None:
        terms.append(f"{more.step} * {_text(more.place, names, known)}")
    if load.offset or not terms:
        terms.append(str(load.offset))
    return f"b{load.buffer.number}[{' + '.join(terms)}]"


def _for(name: str, size: int, indent: int) -> str:
    return f"{'  ' * indent}for (int64_t {name} = 0; {name} < {size}; ++{name}) {{"


def _check(loop: Loop) -> Iterator[str]:
    names = [f"i{d}" for d in range(len(loop.shape))]
    for depth, (name, size) in enumerate(zip(names, loop.shape, strict=True)):
        yield _for(name, size, depth + 1)
    text = _text(loop.tree, names, {})
    yield f"if ((uint64_t)({text}) >= {loop.limit}u) return false;" + "}" * len(names)
    yield "  return true;"


def _loop_nest(group: LoopGroup, memory: WorkspacePlan) -> Iterator[str]:
    if group[0].reduced:
        yield from _sum_nest(group[0])
        return
    names, opened = _index_names(group, group[0].shape)
    count = itertools.count()
    for depth, (name, size) in enumerate(opened):
        yield _for(name, size, depth + 1)
    known: dict[Buffer, str] = {}
    for loop in group:
        assert loop.target is not None
        text, kind = _text(loop.tree, names, known), C_TYPES[loop.dtype]
        if not isinstance(loop.target, Load):
            yield f"{_text(loop.target, names, {})} = {text};"
            continue
        value = known[loop.target.buffer] = f"v{next(count)}"
        yield f"const {kind} {value} = {text};"
        if loop.target.buffer not in memory.local:
            yield f"{_text(loop.target, names, {})} = {value};"
    yield "}" * len(opened)


def _index_names(group: LoopGroup, shape: Shape) -> tuple[list[str], list[tuple[str, int]]]:
    """The index of each dim, and the loops, outermost first; dims that lie behind one another are one loop."""
    accesses = list(group.accesses())
    dims = [d for d, size in enumerate(shape) if size != 1]
    names = ["0"] * len(shape)
    if dims and all(a.strides[d] == a.strides[e] * shape[e] for a in accesses for d, e in itertools.pairwise(dims)):
        names[dims[-1]] = "i"  # all strides follow from the innermost one
        return names, [("i", math.prod(shape))]
    order = _order(dims, accesses)
    for d in order:
        names[d] = f"i{d}"
    return names, [(names[d], shape[d]) for d in order]


def _order(dims: Sequence[int], accesses: Sequence[Load]) -> list[int]:
    """The dims, with that along which most accesses are neighbours last."""

    def neighbours(d: int) -> tuple[int, int]:
        return sum(a.strides[d] == 1 for a in accesses) - sum(a.strides[d] > 1 for a in accesses), d

    if not dims:
        return []
    inner = max(dims, key=neighbours)
    return [*(d for d in dims if d != inner), inner]


def _sum_nest(loop: Loop) -> Iterator[str]:
    """A sum (or maximum) over the last dims."""
    assert isinstance(loop.target, Load)
    out, sizes = len(loop.shape), (*loop.shape, *loop.reduced)
    target = Load(loop.target.buffer, loop.target.offset, (*loop.target.strides, *(0,) * len(loop.reduced)))
    kind = C_TYPES[loop.dtype]
    names = [f"i{d}" if size != 1 else "0" for d, size in enumerate(sizes)]
    order = _order([d for d, size in enumerate(sizes) if size != 1], list(loads(loop.tree)))
    term, into = _text(loop.tree, names, {}), _text(target, names, {})
    start = "0" if loop.kind == "+" else "-INFINITY" if loop.kind == "larger" else "INFINITY"
    inner = order[-1] if order else None
    keeps = inner is not None and inner < out and sizes[inner] <= MOST_SUMS
    outer = [d for d in order if d < out and not (keeps and d == inner)]
    summed = [d for d in order if d >= out]
    for depth, d in enumerate(outer):
        yield _for(names[d], sizes[d], depth + 1)
    if keeps:
        assert inner is not None
        each = _for(names[inner], sizes[inner], 1)
        yield f"{kind} s[{sizes[inner]}]; {each} s[i{inner}] = {start}; }}"
        yield from (_for(names[d], sizes[d], 1) for d in summed)
        yield f"{each} s[i{inner}] = {_joined(f's[i{inner}]', term, loop)}; }}"
        yield "}" * len(summed)
        yield f"{each} {into} = s[i{inner}]; }}"
    else:
        yield f"{kind} s = {start};"
        for d in summed:
            if d == summed[-1] and loop.kind == "+":
                yield "#pragma omp simd reduction(+ : s)"
            yield _for(names[d], sizes[d], 1)
        yield f"s = {_joined('s', term, loop)};" + "}" * len(summed)
        yield f"{into} = s;"
    yield "}" * len(outer)


def _joined(total: str, term: str, loop: Loop) -> str:
    return f"{total} + {term}" if loop.kind == "+" else f"{loop.kind}<{C_TYPES[loop.dtype]}>({total}, {term})"
