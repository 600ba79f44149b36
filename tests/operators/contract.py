"""What every operator on boxes promises, checked with torch's operator on whole tensors.

`check` records a function of tensors, and looks at each of its operators that the table has:

    boxes       the output on random boxes is that part of torch's: corners, insides, single rows, everything
    gradients   those of the tiles of a partition, added up over what the tiles needed, are torch's
    needs       a box for each tensor, within the tensor

Inputs are best in float64. An operator that needs other tensors than floats comes with a function that makes them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from gridwise.grid import Box, Shape
from gridwise.operators.call import OperatorCall, TensorSpec
from gridwise.operators.on_boxes import AnyOperator, Builder, Collecting, Local
from gridwise.operators.random.random_stream import RandomStream
from gridwise.operators.table import NotOnBoxes, maker_for

from ..models.equality import recorded

Case = tuple[str, Callable[..., Any], tuple[Shape, ...]]
"""The name of an operator, a function that calls it, and the shapes of the function's tensors."""


def tensors_of(shapes: Iterable[Shape], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Some numbers, always the same."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]


def check_case(case: Case) -> None:
    """The operator is in the table, and keeps its promises."""
    name, function, shapes = case
    found = check(function, *tensors_of(shapes))
    assert f"aten::{name}" in found, found


def check(
    function: Callable[..., Any], *inputs: Tensor, boxes: int = 6, seed: int = 0, rtol: float = 1e-12
) -> set[str]:
    """Check the operators of a function on boxes; the names of those that were checked, as in "aten::add"."""
    found = set()
    for op, args, kwargs in calls_of(function, inputs):
        if op._schema.is_mutable:  # executors take the operator that makes a new tensor
            continue
        try:
            checked = check_call(op, args, kwargs, boxes, random.Random(seed), rtol)
        except Exception as error:
            error.add_note(f"of {op}{described(args)}, {described(kwargs)}")
            raise
        if checked:
            found.add(str(op._schema.name))
    return found


def calls_of(
    function: Callable[..., Any], inputs: Sequence[Tensor]
) -> Iterator[tuple[OpOverload, list[Any], dict[str, Any]]]:
    """The calls of operators that a function makes, with real tensors; these are torch's results of the calls before."""
    recording = recorded(function, [x.detach() for x in inputs])
    values: dict[torch.fx.Node, Any] = {}

    def given(argument: Any) -> Any:
        return torch.fx.map_arg(argument, lambda node: values[node])

    for node in recording.module.graph.nodes:
        if node.op == "placeholder":
            source = recording.sources[node.name]
            values[node] = recording.constants[source.name] if source.kind == "constant" else inputs[int(source.name)]
        elif node.op == "call_function":
            args, kwargs = list(given(node.args)), dict(given(node.kwargs))
            if isinstance(node.target, OpOverload):
                yield node.target, copied(args), copied(kwargs)
            with torch.no_grad():
                values[node] = node.target(*args, **kwargs)


def check_call(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], boxes: int, choice: random.Random, rtol: float
) -> bool:
    """Check one call; whether the table has it."""
    if maker_for(op) is None:
        return False
    whole, expected, without = computed(op, args, kwargs)
    if not tensors_in([expected]):
        return False
    outputs = [expected] if isinstance(expected, Tensor) else list(expected)
    call = call_of(op, args, kwargs, outputs)
    operator = operator_of(call)
    if operator is None:
        return False
    if isinstance(operator, Local) and operator.draws:  # no other numbers than torch's, but the same on all boxes
        operator = fixed(operator)
        drawn = tensors_in([*whole[0], *whole[1].values()])
        outputs = run_on(operator, Box.of_shape(call.result.shape), drawn)
    if "empty" in call.kind:  # any numbers will do
        outputs = [torch.zeros_like(y) for y in outputs]
    compare = Comparison(rtol)
    ours = wanting(op, args, kwargs, without)
    tensors = tensors_in([*ours[0], *ours[1].values()])
    executed = Eager(choice, compare)
    if isinstance(operator, Collecting) and operator.local is not None:
        compare.all(executed.results(operator.local, tensors, call), outputs, "what is local of output")
    if isinstance(operator, Local):
        with torch.no_grad():
            for box in some_boxes(call.result.shape, boxes, choice):
                made = run_on(operator, box, tensors)
                for y, other in zip(made, outputs, strict=True):
                    compare(y, other.detach()[box.slices], f"the output on {box}")
    made = executed.results(operator, tensors, call)
    compare.all(made, outputs, "output")
    theirs = tensors_in([*whole[0], *whole[1].values()])
    check_gradients(made, outputs, tensors, theirs, compare)
    check_writes(executed, op, args, kwargs, tensors, compare)
    return True


def check_gradients(
    made: Sequence[Tensor], outputs: Sequence[Tensor], ours: Sequence[Tensor], theirs: Sequence[Tensor], compare: Any
) -> None:
    wanted = [i for i, y in enumerate(outputs) if y.requires_grad]
    leaves = [i for i, x in enumerate(theirs) if x.requires_grad]
    if not wanted or not leaves:
        return
    cotangents = [torch.randn_like(outputs[i]) for i in wanted]
    pairs = [(made[i], c) for i, c in zip(wanted, cotangents, strict=True) if made[i].requires_grad]
    ends, starts = [outputs[i] for i in wanted], [theirs[i] for i in leaves]
    try:
        expected = torch.autograd.grad(ends, starts, cotangents, allow_unused=True)
    except RuntimeError:  # torch has none for this
        return
    got: Sequence[Any] = [None] * len(leaves)
    if pairs:
        ys, cs = zip(*pairs, strict=True)
        got = torch.autograd.grad(ys, [ours[i] for i in leaves], cs, allow_unused=True)
    for i, one, other in zip(leaves, got, expected, strict=True):
        zeros = torch.zeros_like(theirs[i])
        compare(zeros if one is None else one, zeros if other is None else other, f"the gradient of tensor {i}")


def check_writes(
    executed: Eager,
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ours: Sequence[Tensor],
    compare: Any,
) -> None:
    """What the operator writes to its arguments is what torch writes."""
    given = copied(args), copied(kwargs)
    with torch.no_grad():
        op(*given[0], **given[1])
    before = tensors_in([*args, *kwargs.values()])
    after = tensors_in([*given[0], *given[1].values()])
    for own, old, new in zip(ours, before, after, strict=True):
        written = executed.written.get(id(own))
        if written is None:
            assert torch.equal(old, new) or bool(old.isnan().any()), "an argument that torch writes is not written"
        else:
            compare(written, new, "a written argument")


def call_of(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[Tensor]) -> OperatorCall:
    return OperatorCall(op, tuple(map(spec, args)), {k: spec(v) for k, v in kwargs.items()}, tuple(map(spec, outputs)))


def operator_of(call: OperatorCall) -> AnyOperator | None:
    make = maker_for(call.op)
    try:
        return None if make is None else make(call)
    except NotOnBoxes:
        return None


def computed(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, set[str]]:
    """Torch's arguments and its result, and the arguments that have no gradient."""
    without: set[str] = set()
    while True:
        whole = wanting(op, args, kwargs, without)
        try:
            return whole, op(*copied(whole[0], keep=True), **copied(whole[1], keep=True)), without
        except RuntimeError as error:
            found = re.search(r"not differentiable with respect to argument '(\w+)'", str(error))
            names = {found[1]} if found else {argument.name for argument in op._schema.arguments}
            if names <= without:
                raise
            without |= names


def fixed(operator: Local) -> Local:
    """The operator with a key for its random numbers."""
    stream = RandomStream(2**61 + 5)
    return replace(operator, run=lambda box, *tensors: operator.run(stream, box, *tensors), draws=False)


def run_on(operator: Local, box: Box, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The outputs on a box, from boxes of the tensors."""
    needs = operator.needs(box)
    assert len(needs) == len(tensors), f"{len(needs)} boxes for {len(tensors)} tensors"
    for need, x in zip(needs, tensors, strict=True):
        assert len(need.start) == x.dim(), f"{need} of a tensor of shape {tuple(x.shape)}"
        assert all(0 <= a <= b <= n for a, b, n in zip(need.start, need.stop, x.shape, strict=True)), (need, x.shape)
    parts = [x[need.slices] for need, x in zip(needs, tensors, strict=True)]
    made = operator.run(box, *parts)
    made = list(made) if isinstance(made, tuple) else [made]
    for y in made:
        assert y.shape == box.shape, f"{tuple(y.shape)} for {box}"
    return made


@dataclass
class Eager(Builder):
    """Computes tile by tile at once; a value is a tensor with the graph of autograd."""

    choice: random.Random
    compare: Comparison
    written: dict[int, Tensor] = field(default_factory=dict)

    def results(self, operator: AnyOperator, tensors: Sequence[Tensor], call: OperatorCall) -> list[Tensor]:
        if isinstance(operator, Local):
            return self._by_tiles(operator, tensors, [(each.shape, each.dtype) for each in call.results])
        if isinstance(operator, Collecting):
            return list(self.collected(operator, tensors))
        made = operator.build(self, *tensors)
        return [made] if isinstance(made, Tensor) else list(made)

    def local(self, operator: Local, values: Sequence[Any], shape: Shape, dtype: torch.dtype, name: str = "") -> Any:
        made = self._by_tiles(operator, values, [(shape, dtype)])
        return made[0] if len(made) == 1 else tuple(made)

    def _by_tiles(
        self, operator: Local, tensors: Sequence[Tensor], results: Sequence[tuple[Shape, torch.dtype]]
    ) -> list[Tensor]:
        shape = results[0][0]
        whole: list[Tensor] = []
        for box in partition(shape, self.choice):
            made = run_on(operator, box, tensors)
            if not whole:
                whole = [torch.zeros(shape, dtype=y.dtype, device=y.device) for y in made]
            for i, y in enumerate(made):
                whole[i] = _placed(whole[i], y, box)
        if not whole:
            whole = [torch.zeros(shape, dtype=dtype) for shape, dtype in results]
        for y, (_, dtype) in zip(whole, results, strict=False):
            assert y.dtype == dtype, f"a result of {y.dtype} instead of {dtype}"
        return whole

    def collected(self, operator: Collecting, values: Sequence[Any], name: str = "") -> tuple[Any, ...]:
        tiles = list(partition(operator.space, self.choice))
        return _Collected.apply(operator, tiles, *values)

    def call(self, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            expected = op(*args, **kwargs)
        outputs = [expected] if isinstance(expected, Tensor) else list(expected)
        call = call_of(op, args, kwargs, outputs)
        operator = operator_of(call)
        if operator is None and not all(y.numel() for y in outputs):  # of nothing, there are no boxes
            return op(*args, **kwargs)
        assert operator is not None, f"{op} is not in the table"
        made = self.results(operator, tensors_in([*args, *kwargs.values()]), call)
        return made[0] if isinstance(expected, Tensor) else tuple(made)

    def write(self, place: Any, value: Any) -> None:
        self.written[id(place)] = value.detach()


def _placed(whole: Tensor, part: Tensor, box: Box) -> Tensor:
    whole = whole.clone()
    whole[box.slices] = part
    return whole


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Collecting, tiles: Sequence[Box], *tensors: Tensor) -> tuple[Tensor, ...]:
        state = None
        for box in tiles:
            state = operator.add(state, box, *(x[need.slices] for x, need in _cut(operator, box, tensors)))
        made = operator.finish(state)
        ctx.operator, ctx.tiles, ctx.state = operator, tiles, state
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(y for y in made if not y.dtype.is_floating_point and not y.dtype.is_complex))
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        tensors, found = ctx.saved_tensors, [None] * len(ctx.saved_tensors)
        for box in ctx.tiles:
            cut = _cut(ctx.operator, box, tensors)
            parts = [x[need.slices] for x, need in cut]
            gradients = ctx.operator.gradients(ctx.state, box, parts, cotangents)
            for i, ((x, need), part) in enumerate(zip(cut, gradients, strict=True)):
                if part is not None:
                    whole = torch.zeros_like(x) if found[i] is None else found[i]
                    whole[need.slices] += part
                    found[i] = whole
        return None, None, *found


def _cut(operator: Collecting, box: Box, tensors: Sequence[Tensor]) -> list[tuple[Tensor, Box]]:
    return list(zip(tensors, operator.needs(box), strict=True))


@dataclass
class Comparison:
    """Compares relative to the largest number in a tensor, or to 1."""

    rtol: float

    def __call__(self, got: Tensor, expected: Tensor, what: str) -> None:
        got, expected = got.detach(), expected.detach()
        assert got.dtype == expected.dtype, f"{what}: {got.dtype} instead of {expected.dtype}"
        assert got.shape == expected.shape, f"{what}: {tuple(got.shape)} instead of {tuple(expected.shape)}"
        exact = not (expected.dtype.is_floating_point or expected.dtype.is_complex)
        finite = expected[expected.isfinite()]
        scale = max(1.0, float(finite.abs().max())) if finite.numel() and not exact else 1.0
        tolerance = 0.0 if exact else self.tolerance(expected.dtype) * scale
        torch.testing.assert_close(
            got, expected, rtol=0, atol=tolerance, equal_nan=True, msg=lambda text: f"{what}: {text}"
        )

    def tolerance(self, dtype: torch.dtype) -> float:
        return max(self.rtol, 32 * torch.finfo(dtype).eps if dtype not in (torch.float64, torch.complex128) else 0.0)

    def all(self, got: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> None:
        assert len(got) == len(expected), f"{len(got)} results instead of {len(expected)}"
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            self(one, other, f"{what} {i}")


# Boxes


def some_boxes(shape: Shape, count: int, choice: random.Random) -> list[Box]:
    """Everything, the corners, one row, and random ones; none is empty."""
    if not shape:
        return [Box((), ())]
    if 0 in shape:
        return []
    found = [Box.of_shape(shape)]
    found.append(Box.of_intervals((0, (n + 1) // 2) for n in shape))
    found.append(Box.of_intervals((n // 2, n) for n in shape))
    found.append(Box.of_intervals((n // 2, n // 2 + 1) for n in shape))
    for _ in range(count):
        found.append(Box.of_intervals(_interval(n, choice) for n in shape))
    return found


def _interval(extent: int, choice: random.Random) -> tuple[int, int]:
    first = choice.randrange(extent)
    return first, choice.randint(first + 1, extent)


def partition(shape: Shape, choice: random.Random) -> Iterable[Box]:
    """Disjoint boxes, none of them empty, that are all of a tensor; at most about twenty."""
    if 0 in shape:
        return []
    lines, count = [], 1
    for n in reversed(shape):
        parts = min(n, choice.randint(2, 3)) if count < 9 else 1
        cuts = sorted(choice.sample(range(1, n), parts - 1)) if parts > 1 else []
        count *= parts
        lines.append(list(pairwise([0, *cuts, n])))
    return [Box.of_intervals(each) for each in product(*reversed(lines))]


# Arguments


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += tensors_in(each)
    return found


def _mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return [_mapped(each, function) for each in value]
    if isinstance(value, dict):
        return {key: _mapped(each, function) for key, each in value.items()}
    return value


def copied(value: Any, keep: bool = False) -> Any:
    """Copies of the tensors, with `keep` as part of the graph."""
    return _mapped(value, lambda x: x.clone() if keep else x.detach().clone())


def wanting(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], without: Collection[str] = ()
) -> tuple[list[Any], dict[str, Any]]:
    """Copies of the tensors that require a gradient if they can; running statistics cannot, nor those in `without`."""
    names = [argument.name for argument in op._schema.arguments]

    def leaf(name: str, value: Any) -> Any:
        def of(x: Tensor) -> Tensor:
            can = (x.is_floating_point() or x.is_complex()) and not (name.startswith("running") or name in without)
            return x.detach().clone().requires_grad_(can)

        return _mapped(value, of)

    return [leaf(name, each) for name, each in zip(names, args, strict=False)], {
        name: leaf(name, each) for name, each in kwargs.items()
    }


def spec(value: Any) -> Any:
    return _mapped(value, lambda x: TensorSpec(tuple(x.shape), x.dtype, x.device))


def described(value: Any) -> str:
    return repr(_mapped(value, lambda x: f"<{tuple(x.shape)} {x.dtype}>"))
