"""From a recording to operators on boxes: each ATen operator is looked up in the table, and writes become new values.

A tensor that is written to gets a new value. Where it is a view, its base gets one too, in which the written part is
replaced; other views of that base are made again when they are read next.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..errors import UnsupportedError
from ..grid import Box, Shape
from ..models.recording import Recording
from ..models.recording.checks import is_check, named
from ..models.recording.gradients import gradients, requiring_grad
from ..models.recording.recording import Backward, draws, tensors_in, where, written_by
from ..models.rules.answer import functional
from ..operators.call import OperatorCall, TensorSpec, order_of
from ..operators.on_boxes import AnyOperator, Builder, Collecting, Composed, Local
from ..operators.table import NotOnBoxes, maker_for
from ..torch_internals.operators import OpOverload, name_of, schema_of
from ..torch_internals.switches import enter_autocast, exit_autocast, set_grad_enabled
from .autograd_functions import OwnBackward, recording_of
from .graph import GlobalValue, Operation, OperatorGraph, Whole
from .views import CannotPutBack, Tensors

SKIPPED = {"aten::_assert_tensor_metadata", "aten::_assert_scalar", "aten::sym_constrain_range"}
"""Run-time checks that recording has already made."""


def lower(recording: Recording, name: str) -> OperatorGraph:
    """The operations of a recording.

    Raises
    ------
    UnsupportedError : naming what cannot be tiled, with its module and line
    """
    lowering = Lowering(recording, name)
    lowering.walk()
    return lowering.graph()


class Lowering(Builder):
    """One pass over a recording."""

    def __init__(self, recording: Recording, name: str, given: int | None = None) -> None:
        self.recording, self.name, self.given = recording, name, given
        self.operations: list[Operation] = []
        self.inputs: dict[int, GlobalValue] = {}
        self.fixed: list[GlobalValue] = []
        self.writes: dict[GlobalValue, GlobalValue] = {}
        self.outputs: list[GlobalValue] = []
        self.checks: list[tuple[GlobalValue, str, str]] = []
        self.node: Node | None = None
        self._tensors = Tensors(self.call, self._again)
        self._several: dict[Node, Sequence[Any]] = {}
        self._casts: dict[Node, tuple[Any, ...]] = {}
        self._draws = 0
        self._grad_enabled = True
        self._function: int | None = None
        """The region of the autograd Function whose forward is being followed."""
        self._function_inputs: list[GlobalValue] = []

    def graph(self) -> OperatorGraph:
        return OperatorGraph(
            self.name, self.operations, self.inputs, self.fixed, self.outputs, list(self.writes.items()), self.checks,
            self.recording.constants, self._draws > 0,
        )  # fmt: skip

    # The walk

    def walk(self) -> None:
        for node in self.recording.module.graph.nodes:
            self._move_to_function(node)
            self.node = node
            if node.op in ("placeholder", "get_attr"):
                self._enter(node)
            elif node.op == "output":
                self.outputs = [self._tensors.read(each) for each in node.args[0]]
            else:
                self._follow(node)
        sources = {source: value for value in self.fixed if (source := value.source) is not None}
        for node, value in self._tensors.written_placeholders():
            source = self.recording.sources[node.name]
            if source.kind == "input" and (self.given is None or int(source.name) < self.given):
                raise UnsupportedError(
                    f"{self.name}: input {source.name} is changed in place, which is not done tile by tile.\n"
                    "  fix: change a copy of it (x = x.clone()) in the model."
                )
            if source.kind in ("parameter", "buffer"):
                self.writes[sources[source]] = value

    def _enter(self, node: Node) -> None:
        source = self.recording.sources[node.name]
        fake = node.meta["val"] if node.op == "placeholder" else self.recording.constants[source.name]
        needs_grad = node.meta["tensor_meta"].requires_grad if "tensor_meta" in node.meta else fake.requires_grad
        value = GlobalValue(spec_of(fake), needs_grad, source=source, of_parameters=source.kind != "input")
        if source.kind == "input":
            self.inputs[int(source.name)] = value
        else:
            self.fixed.append(value)
        self._tensors.bind(node, value)

    def _follow(self, node: Node) -> None:
        target = node.target
        if target is enter_autocast:
            self._casts[node] = tuple(node.args)
        elif target is exit_autocast:
            del self._casts[node.args[0]]  # type: ignore[arg-type]
        elif target is set_grad_enabled:
            self._grad_enabled = bool(node.args[0])
        elif target is operator.getitem:
            self._tensors.bind(node, self._one_of(node))
        elif not isinstance(target, OpOverload):
            asks = target in (gradients, requiring_grad)
            raise self._refusal("the model asks for gradients itself" if asks else "it is no operator of torch")
        elif is_check(node):
            if self.given is not None:
                raise self._refusal("it checks values in the backward of an autograd Function")
            self.checks.append((self._tensors.read(node.args[0]), *named(node)))  # type: ignore[arg-type]
        elif name_of(target) not in SKIPPED and (node.users or tensors_in(node.meta.get("val"))):
            self._operate(node, target)

    def _one_of(self, node: Node) -> GlobalValue:
        """One of several results; torch notes only here whether it needs a gradient."""
        value, meta = self._several[node.args[0]][node.args[1]], node.meta.get("tensor_meta")  # type: ignore[index]
        needed: bool = getattr(meta, "requires_grad", True)
        return self._detached(value) if value and value.requires_grad and not needed else value

    # Autograd Functions

    def _move_to_function(self, node: Node) -> None:
        """End the Function that the node is no longer in, and begin the one that it is in."""
        number = self._function_of(node)
        if number == self._function:
            return
        if self._function is not None:
            self._end_function(self.recording.regions[self._function].backward)
        if number is not None:
            backward = self.recording.regions[number].backward
            assert backward is not None
            if any(self._function_of(self._nodes[name]) == number for name in backward.inputs):
                self.node = node
                raise self._refusal(f"{backward.function.__name__} has a backward of its own, and changes an argument")
            self._function_inputs = self._values_at(backward.inputs)
        self._function = number

    def _function_of(self, node: Node) -> int | None:
        """The outermost Function in whose forward a node is."""
        number, within = None, node.meta.get("region") if node.op == "call_function" else None
        while within is not None:
            region = self.recording.regions[within]
            number, within = within if region.kind == "function" else number, region.within
        return number

    def _values_at(self, names: Sequence[str]) -> list[GlobalValue]:
        return [self._tensors.read(self._nodes[name]) for name in names]

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.recording.module.graph.nodes}

    def _end_function(self, backward: Backward | None) -> None:
        """What has been followed is without gradients; its outputs get those of the recorded backward."""
        assert backward is not None
        function, self._function = backward.function.__name__, None
        outputs = [self._identity(value, _is_real(value.spec.dtype)) for value in self._values_at(backward.outputs)]
        for name, value in zip(backward.outputs, outputs, strict=True):
            self._tensors.rebind(self._nodes[name], value)
        saved = self._values_at(backward.saved)
        lowering = Lowering(recording_of(backward), f"the backward of {function} in {self.name}", len(saved))
        lowering.walk()
        graph, inputs = lowering.graph(), self._function_inputs
        if graph.draws or [g.shape for g in graph.outputs] != [x.shape for x in inputs]:
            raise self._refusal(f"{function} has a backward of its own, with random numbers or broadcast gradients")
        own = OwnBackward(graph, tuple(saved), tuple(outputs), tuple(inputs))
        for value in outputs:
            assert value.by is not None
            value.by.backward = own

    def _operate(self, node: Node, op: OpOverload) -> None:
        written = written_by(node)
        if len(written) > 1 or (written and written[0] is not node.args[0]):
            raise self._refusal("it changes other arguments than its first")
        if written and self._tensors.loses_gradient(written[0], self._grad_enabled):
            raise self._refusal("it changes a tensor past its gradient, by no_grad or detach")
        if not written:
            made = self._made(op, node)
            if isinstance(node.meta["val"], Tensor):
                self._tensors.bind(node, made)
            else:
                self._several[node] = made
            return
        if op is torch.ops.aten.copy_.default:
            value = self._converted(self._given(node.args[1]), written[0])
        else:
            plain = functional(op)
            if plain is None:
                raise self._refusal("it changes a tensor in place")
            value = self._converted(self._made(plain, node), written[0])
        try:
            self._tensors.write(written[0], value)
        except CannotPutBack as error:
            raise self._refusal(str(error)) from None
        self._tensors.bind(node, value)

    def _again(self, node: Node, base: GlobalValue) -> GlobalValue:
        """A view of `base`, made again because something was written to it."""
        before, by = self.node, node
        self.node = node
        try:
            while by.target is operator.getitem:
                (by,) = by.all_input_nodes
            assert isinstance(by.target, OpOverload)
            args = [base if i == 0 else self._given(each) for i, each in enumerate(by.args)]
            results = tuple(spec_of(x) for x in tensors_in(by.meta["val"]))
            made = self._apply(by.target, args, dict(by.kwargs), results, False)
            return made[node.args[1]] if by is not node else made[0]  # type: ignore[index]
        finally:
            self.node = before

    def _converted(self, value: GlobalValue, target: Node) -> GlobalValue:
        """A value that takes the place of another: it has its shape and dtype."""
        fake = target.meta["val"]
        if value.shape != tuple(fake.shape):
            value = self.call(torch.ops.aten.expand.default, value, list(fake.shape))
        if value.spec.dtype != fake.dtype:
            value = self.call(torch.ops.aten.to.dtype, value, fake.dtype)
        needs_grad = self._grad_enabled and self._tensors.read(target).requires_grad  # though nothing of it may be left
        return self._identity(value, True) if needs_grad and not value.requires_grad else value

    def _made(self, op: OpOverload, node: Node) -> Any:
        """The value that a node makes by `op`, or the values if it makes several."""
        results = tuple(spec_of(x) for x in tensors_in(node.meta["val"]))
        meta: Any = node.meta.get("tensor_meta")
        metas = list(meta) if isinstance(meta, list | tuple) and not hasattr(meta, "shape") else [meta]
        needs = [getattr(each, "requires_grad", None) for each in metas]
        args, kwargs = [self._given(each) for each in node.args], {k: self._given(v) for k, v in node.kwargs.items()}
        for argument in schema_of(node.target).arguments[len(args) :]:
            if argument.has_default_value() and any(a.name == argument.name for a in schema_of(op).arguments):
                kwargs.setdefault(argument.name, argument.default_value)
        is_random = draws(node)
        made = self._apply(op, args, kwargs, results, is_random)
        if len(needs) == len(made):
            for value, needed in zip(made, needs, strict=True):
                if needed is False:
                    made = [self._detached(v) if v is value and v.requires_grad else v for v in made]
        if isinstance(node.meta["val"], Tensor):
            return made[0]
        left = iter(made)  # some operators give None in places
        return (
            made if len(made) >= len(node.meta["val"]) else [x if x is None else next(left) for x in node.meta["val"]]
        )

    def _detached(self, value: GlobalValue) -> GlobalValue:
        """The same without a gradient: what the model computes under `no_grad`, or detaches."""
        if value.by is not None and len(value.by.outputs) == 1 and value.by is self.operations[-1]:
            value.requires_grad = False
            return value
        return self._identity(value, False)

    def _identity(self, value: GlobalValue, needs_grad: bool) -> GlobalValue:
        same = Local(lambda box: [box], lambda box, x: x)
        new = self.local(same, [value], value.shape, value.spec.dtype)
        new.requires_grad = needs_grad
        return new

    def _given(self, argument: object) -> Any:
        if isinstance(argument, Node):
            return self._tensors.read(argument)
        return [self._given(each) for each in argument] if isinstance(argument, list | tuple) else argument

    # Operators

    def _apply(
        self,
        op: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        results: Sequence[TensorSpec],
        random: bool,
    ) -> list[GlobalValue]:
        """Add the operations of a call; its results."""
        call = OperatorCall(op, tuple(map(_specs, args)), {k: _specs(v) for k, v in kwargs.items()}, tuple(results))
        order = [a.name for a in schema_of(op).arguments]
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        values = [value for name in order if name in given for value in _values(given[name])]
        maker, reason = maker_for(op), "there is no operator on boxes for it"
        found: AnyOperator | None = None
        if maker is not None:
            try:
                found = maker(call)
            except NotOnBoxes as error:
                reason = str(error)
        if found is None:
            if random:
                raise self._refusal(f"{reason}, and it draws random numbers")
            return list(self._add(Whole(call.locally(), reason), values, results))
        if isinstance(found, Composed):
            made = found.build(self, *values)
            return list(made) if isinstance(made, list | tuple) else [made]
        return list(self._add(found, values, results))

    def _add(
        self,
        found: Local | Collecting | Whole,
        values: Sequence[GlobalValue],
        results: Sequence[TensorSpec],
        name: str = "",
    ) -> tuple[GlobalValue, ...]:
        needs_grad = self._grad_enabled and self._function is None and any(value.requires_grad for value in values)
        outputs = tuple(GlobalValue(s, needs_grad and _is_real(s.dtype)) for s in results)
        drawn = isinstance(found, Local | Whole) and found.draws
        self._draws += drawn
        said = where(self.node) if self.node is not None else self.name
        operation = Operation(
            len(self.operations), found, tuple(values), outputs, f"{name} of {said}" if name else said,
            self._draws if drawn else 0, tuple(self._casts.values()),
        )  # fmt: skip
        for place, value in enumerate(outputs):
            value.by, value.place = operation, place
            value.of_parameters = bool(values) and all(each.of_parameters for each in values)
        self.operations.append(operation)
        return outputs

    def local(self, operator: Local, values: Sequence[Any], shape: Shape, dtype: torch.dtype, name: str = "") -> Any:
        device = values[0].spec.device if values else self._device
        return self._add(operator, values, [TensorSpec(tuple(shape), dtype, device)], name)[0]

    def collected(self, operator: Collecting, values: Sequence[Any], name: str = "") -> tuple[Any, ...]:
        box = Box.of_shape(operator.space)
        needs = operator.needs(box)
        blank = [torch.empty(n.shape, dtype=v.spec.dtype, device="meta") for n, v in zip(needs, values, strict=True)]
        made = operator.finish(operator.add(None, box, *blank))
        return self._add(operator, values, [replace(spec_of(x), device=values[0].spec.device) for x in made], name)

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        like = [torch.empty(v.shape, dtype=v.spec.dtype, device="meta") for a in args for v in _values(a)]
        left = iter(like)
        filled = [_filled(a, left) for a in args]
        fake = op(*filled, **kwargs)
        device = next((v.spec.device for a in args for v in _values(a)), self._device)
        results = [TensorSpec(tuple(x.shape), x.dtype, device) for x in tensors_in(fake)]
        made = self._apply(op, args, kwargs, results, False)
        return made[0] if isinstance(fake, Tensor) else made

    def write(self, place: Any, value: Any) -> None:
        self._tensors.replace(place, value)

    @property
    def _device(self) -> torch.device:
        assert self.node is not None
        return next((x.device for x in tensors_in(self.node.meta.get("val"))), torch.device("cpu"))

    def _refusal(self, reason: str) -> UnsupportedError:
        assert self.node is not None
        return UnsupportedError(f"{self.name} cannot be tiled: {where(self.node)}: {reason}.")


def spec_of(x: Tensor) -> TensorSpec:
    return TensorSpec(tuple(x.shape), x.dtype, x.device, order=order_of(x))


def _is_real(dtype: torch.dtype) -> bool:
    """Whether a tensor of this dtype can need a gradient."""
    return dtype.is_floating_point or dtype.is_complex


def _specs(argument: object) -> Any:
    if isinstance(argument, GlobalValue):
        return argument.spec
    return [_specs(each) for each in argument] if isinstance(argument, list | tuple) else argument


def _values(argument: object) -> Iterator[GlobalValue]:
    if isinstance(argument, GlobalValue):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _values(each)


def _filled(argument: object, tensors: Iterator[Tensor]) -> Any:
    if isinstance(argument, GlobalValue):
        return next(tensors)
    return [_filled(each, tensors) for each in argument] if isinstance(argument, list | tuple) else argument
