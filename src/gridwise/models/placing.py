"""Placing: from a recording to a program, operator by operator, by the table of rules.

    for each node    ask its rule how its tensors have to lie; add the movements that bring them there, each once;
                     add the operator; note where its outputs lie
    no rule          gather the tensors, compute on every worker, say so; refused for operators that change their arguments
                     or return views of them, and everywhere if the user asked for that

All sizes are known, so nothing is sent, but for a vote of the convolutions on which of their roads to take.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx import Node

from ..errors import UnsupportedError
from ..grid import Grid, Layout, Needs
from ..partition import Partition
from .aliasing import Aliases, tensors_in, written_by
from .functions import placed_function
from .movement import enter, is_there, leave, movement, result_of
from .placement import SMALL, Cut, Partial, Placement, Replicated, Value, Want, Workers
from .program import Checkpoint, Program, Step, free_early
from .recording.recording import Recording, Region, where
from .report import Gather, Report
from .rules import Call, NoRule, Placed, rule_for
from .rules.pointwise import is_pointwise, pointwise

SWITCHES = (torch._C._set_grad_enabled, _enter_autocast, _exit_autocast)


@dataclass(frozen=True)
class Item:
    """A tensor of the program: in which slot, and what is known of it."""

    slot: int
    value: Value


def place(
    recording: Recording,
    input_layouts: Sequence[Layout | None],
    P_x: Partition,
    gather: Literal["report", "refuse"] = "report",
    name: str = "the model",
) -> Program:
    """The program of a recording whose inputs lie in these blocks; None for inputs that every worker has.

    All workers of `P_x` enter together.

    Raises
    ------
    UnsupportedError : naming every operator that cannot be run on blocks, with its module and line
    """
    placing = _Placing(recording, input_layouts, Workers(P_x.transport, P_x.grid), name)
    with ExitStack() as modes:
        modes.callback(torch._C._set_grad_enabled, torch.is_grad_enabled())
        placing.run()
    program = placing.finish()
    if placing.problems:
        raise UnsupportedError(
            f"{name} cannot be distributed: {len(placing.problems)} operator(s) cannot be run on blocks.\n"
            + "\n".join(f"  {problem}" for problem in placing.problems)
        )
    if gather == "refuse" and program.report.gathers:
        raise UnsupportedError(
            f"{name} gathers tensors, and `gather` (='refuse') forbids that.\n"
            + "\n".join(f"  {each}" for each in program.report.gathers)
            + "\n  fix: gather='report', or a rule of your own (gridwise.register_rule)."
        )
    return program


class _Placing:
    def __init__(self, recording: Recording, layouts: Sequence[Layout | None], workers: Workers, name: str) -> None:
        self.recording, self.layouts, self.workers, self.name = recording, layouts, workers, name
        self.graph = recording.module.graph
        self.aliases = Aliases(self.graph, recording.sources)
        self.items: dict[Node, Item | list[Item | None]] = {}
        self.steps: list[Step] = []
        self.moved: dict[tuple[int, Want], Item] = {}
        self.slot_of_memory: dict[int, set[int]] = {}
        self.count = 0
        self.sources: list[tuple[int, Any]] = []
        self.results: list[int] = []
        self.outputs: list[Placement] = []
        self.report = Report(workers.size)
        self.problems: list[str] = []
        self.written: set[int] = set()
        self.region: list[tuple[Region, list[Step], dict[tuple[int, Want], Item]]] = []
        self.entered: dict[Node, Any] = {}

    def new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    # Walking

    def run(self) -> None:
        for node in self.graph.nodes:
            self._move_to_region(node)
            if node.op == "placeholder":
                self._enter(node)
            elif node.op == "output":
                self._leave(node)
            elif node.target in SWITCHES:
                self._switch(node)
            elif node.target is operator.getitem:
                source = self.items.get(node.args[0])
                if isinstance(source, list):
                    item = source[node.args[1]]
                    if item is not None:
                        self._bind(node, item)
            elif isinstance(node.target, torch._ops.OpOverload):
                self._place(node)
            else:
                self.problems.append(f"{where(node)}: no operator of torch")

    def finish(self) -> Program:
        free_early(self.steps, set(self.results))
        program = Program(
            self.workers, self.name, self.count, self.sources, self.recording.constants, self.steps,
            self.results, self.outputs, self.report,
        )  # fmt: skip
        program.draws = any(step.draws for step in self.steps)
        program.written = frozenset(self.written)
        return program

    def _value(self, x: Tensor, placement: Placement) -> Value:
        return Value(tuple(int(n) for n in x.shape), x.dtype, x.device, placement)

    def _bind(self, node: Node, item: Item) -> None:
        tensor = self.aliases.same(node)
        self.items[tensor] = self.items[node] = item
        memory = self.aliases.memory(node)
        if memory is not None:
            self.slot_of_memory.setdefault(memory, set()).add(item.slot)

    def _item(self, node: Node) -> Item:
        item = self.items[self.aliases.same(node)]
        assert isinstance(item, Item)
        return item

    def _enter(self, node: Node) -> None:
        source, x = self.recording.sources[node.name], node.meta["val"]
        placement: Placement = Replicated()
        if source.kind == "input" and self.workers.size > 1:
            layout = self.layouts[int(source.name)]
            placement = Replicated() if layout is None else Cut(layout)
        item = Item(self.new_slot(), self._value(x, placement))
        self.sources.append((item.slot, source))
        self._bind(node, item)
        if any(node in written_by(user) for user in node.users):
            self.written.add(item.slot)
        elif source.kind == "input" and (x.is_floating_point() or x.is_complex()):
            move = enter(item.value, self.workers, f"input {source.name} of {self.name}")
            if move is not None:
                self._bind(node, self._emit(move, [item], item.value))

    def _leave(self, node: Node) -> None:
        """Outputs leave in balanced blocks; numbers, and nothing else, are the same on all workers."""
        for each in node.args[0]:
            item, name = self._item(each), f"an output of {self.name}"
            if item.value.dim and self.workers.size > 1:
                grid = item.value.layout.grid if item.value.layout is not None else self._batch_grid(item.value.dim)
                item = self.brought(item, Layout.balanced(grid, item.value.shape), name)
            move, placement = leave(item.value, self.workers, name)
            if move is not None and (item.value.dtype.is_floating_point or item.value.dtype.is_complex or isinstance(item.value.placement, Partial)):
                item = self._emit(move, [item], replace(item.value, placement=placement))
            self.results.append(item.slot)
            self.outputs.append(placement)

    def _batch_grid(self, dim: int) -> Grid:
        return Grid(self.workers.ranks, (self.workers.size,) + (1,) * (dim - 1))

    def _switch(self, node: Node) -> None:
        """Switch a mode, here too: rules ask for it."""
        if node.target is _exit_autocast:
            slot, mode = self.entered.pop(node.args[0])
            _exit_autocast(mode)
            self.steps.append(Step(_exit_autocast, (slot,), None))
            return
        args = tuple(node.args)
        made = node.target(*args)
        if node.target is _enter_autocast:
            slot = self.new_slot()
            self.entered[node] = slot, made
            self.steps.append(Step(lambda: _enter_autocast(*args), (), slot))
        else:
            self.steps.append(Step(lambda: torch._C._set_grad_enabled(*args), (), None))

    # Regions

    def _move_to_region(self, node: Node) -> None:
        """Begin or end the regions that the node is in or no longer in."""
        wanted: list[Region] = []
        number = node.meta.get("region") if node.op == "call_function" else None
        while number is not None:
            region = self.recording.regions[number]
            wanted.insert(0, region)
            number = region.within
        while self.region and (len(self.region) > len(wanted) or self.region[-1][0] != wanted[len(self.region) - 1]):
            self._end_region()
        for region in wanted[len(self.region) :]:
            self.region.append((region, self.steps, dict(self.moved)))
            self.steps = []

    def _end_region(self) -> None:
        region, outer, moved = self.region.pop()
        inner, self.steps, self.moved = self.steps, outer, moved
        made = {slot for step in inner for slot in step.made}
        used = {slot for step in inner for slot in step.inputs} - made
        inputs = tuple(sorted(used))
        outputs = tuple(sorted(made & {s for item in self.items.values() for s in _slots(item)}))
        if not inner:
            return
        if region.kind == "checkpoint":
            call = Checkpoint(inner, inputs, outputs, region.keeps_random_state)
            self.steps.append(Step(call, inputs, outputs, draws=True, number=self.count))
            return
        try:
            self.steps.append(placed_function(self, region, inner, inputs, outputs))
        except NoRule as error:
            assert region.backward is not None
            self.problems.append(f"{region.backward.function.__name__}: {error}")

    # Steps

    def _emit(self, run: Any, inputs: Sequence[Item], value: Value, draws: bool = False, number: int = 0) -> Item:
        item = Item(self.new_slot(), value)
        self.steps.append(Step(run, tuple(each.slot for each in inputs), item.slot, draws, number))
        return item

    def brought(self, item: Item, want: Want, name: str) -> Item:
        """The tensor as it is wanted; each movement is made once."""
        if is_there(item.value, want):
            return item
        key = item.slot, want
        if key not in self.moved:
            placement = result_of(item.value, want) if not isinstance(item.value.placement, Partial) else (
                Cut(want) if isinstance(want, Layout) else Replicated()
            )
            move = movement(item.value, want, self.workers, name)
            self.moved[key] = self._emit(move, [item], replace(item.value, placement=placement))
            if isinstance(item.value.placement, Cut):
                self.report.moved += item.value.nbytes if isinstance(want, Replicated) else item.value.nbytes // self.workers.size
        return self.moved[key]

    def _forget(self, node: Node) -> None:
        """What was moved of tensors that share memory with one that has been written to is no longer right."""
        memory = self.aliases.memory(node)
        stale = self.slot_of_memory.get(memory, set()) if memory is not None else set()
        self.moved = {key: item for key, item in self.moved.items() if key[0] not in stale}

    # Operators

    def _place(self, node: Node) -> None:
        if str(node.target._schema.name) in SKIPPED:  # type: ignore[union-attr]
            return
        written = written_by(node)
        try:
            if len(written) > 1 or (written and written[0] is not node.args[0]):
                raise NoRule("it changes other arguments than its first")
            if written:
                self._write(node)
            else:
                self._bind_results(node, self._apply(node, self._call(node, node.target)))
        except NoRule as error:
            self.problems.append(f"{where(node)}: {error}")
            for made in tensors_in(node.meta.get("val")):
                self.items[node] = Item(self.new_slot(), self._value(made, Replicated()))
            if node.meta.get("val") is not None and not isinstance(node.meta["val"], Tensor):
                self.items[node] = [Item(self.new_slot(), self._value(x, Replicated())) for x in tensors_in(node.meta["val"])]

    def _call(self, node: Node, op: Any, written: bool = False) -> Call:
        def given(argument: Any) -> Any:
            if isinstance(argument, Node):
                return self._item(argument).value
            if isinstance(argument, list | tuple):
                return [given(each) for each in argument]
            return argument

        results = tuple(self._value(x, Replicated()) for x in tensors_in(node.meta.get("val")))
        return Call(
            op,
            tuple(map(given, node.args)),
            {key: given(value) for key, value in node.kwargs.items()},
            results,
            self.workers,
            where(node),
            node in self.aliases.keeps_alias,
            written,
            self.count,
        )

    def _apply(self, node: Node, call: Call, placed: Placed | None = None) -> list[Item | None]:
        """Add the steps of one call; its outputs."""
        given = [self._item(each) for each in _nodes_in(node, call)]
        placed = placed or self._answer(node, call)
        wants = list(placed.inputs) or [None] * len(given)
        self._note_gathers(node, call, placed, wants)
        brought = [self.brought(item, want, call.name) for item, want in zip(given, wants, strict=True)]
        run = placed.run
        if node in self.aliases.isolates:
            run = _isolated(run)
        several = not isinstance(node.meta.get("val"), Tensor)
        outputs = list(placed.outputs) if isinstance(placed.outputs, Sequence) else [placed.outputs]
        if not several:
            item = self._emit(_first(run) if False else run, brought, replace(call.result, placement=outputs[0]), placed.draws, self.count)
            self._balance(item.value)
            return [item]
        items = [
            Item(self.new_slot(), replace(result, placement=placement))
            for result, placement in zip(call.results, outputs, strict=True)
        ]
        slots = tuple(item.slot for item in items)
        self.steps.append(Step(run, tuple(item.slot for item in brought), slots, placed.draws, self.count))
        return list(items)

    def _answer(self, node: Node, call: Call) -> Placed:
        rule = rule_for(call.op) or (pointwise if is_pointwise(call.op) else None)
        try:
            if rule is not None:
                return rule(call)
            reason = "there is no rule for it"
        except NoRule as error:
            reason = str(error)
            if call.keeps_alias:
                raise
        if call.cut and call.keeps_alias:
            raise NoRule(f"{reason}, and it returns a view that is written to")
        if torch.Tag.nondeterministic_seeded in call.op.tags:
            raise NoRule(f"{reason}, and it draws random numbers")
        return replace(call.everywhere(), gathers=reason if call.cut else None)

    def _note_gathers(self, node: Node, call: Call, placed: Placed, wants: Sequence[Want]) -> None:
        for value, want in zip(call.tensors, wants, strict=True):
            if not isinstance(want, Replicated) or value.layout is None:
                continue
            if placed.gathers is None and value.volume <= SMALL:
                continue
            reason = placed.gathers or f"it needs all of a tensor of shape {value.shape}"
            self.report.gathers.append(
                Gather(
                    str(call.op).removeprefix("aten."), node.meta.get("module") or "", node.meta.get("line") or "",
                    reason, value.nbytes, placed.gathers is None,
                )
            )  # fmt: skip

    def _balance(self, value: Value) -> None:
        if value.layout is not None and value.volume > SMALL:
            largest = 1.0
            for cuts in value.layout.cuts:
                largest *= max(b - a for a, b in zip(cuts, cuts[1:], strict=False))
            self.report.count(largest, value.volume / self.workers.size)

    def _bind_results(self, node: Node, items: Sequence[Item | None]) -> None:
        if isinstance(node.meta.get("val"), Tensor):
            assert items[0] is not None
            self._bind(node, items[0])
        else:
            self.items[node] = list(items)

    # Writes

    def _write(self, node: Node) -> None:
        """An operator that changes its first argument: in place where others see it, else perhaps by a new tensor."""
        op: Any = node.target
        target = node.args[0]
        assert isinstance(target, Node)
        own, seen = self._item(target), node in self.aliases.in_place
        plain = functional(op)
        elementwise = is_pointwise(op) or rule_for(op) is pointwise or (plain is not None and rule_for(plain) is pointwise)
        others_cut = own.value.layout is None and any(
            isinstance(self._item(each).value.placement, Cut) for each in node.all_input_nodes if each is not target
        )
        if isinstance(own.value.placement, Partial):
            own = self.brought(own, Replicated(), where(node))
            self._bind(target, own)
        if elementwise and (seen or not others_cut):
            call = self._call(node, op, written=True)
            items = self._apply(node, call, pointwise(call))
            result = items[0]
            assert result is not None
            result = Item(result.slot, replace(own.value))
        elif plain is None:
            raise NoRule("it changes a tensor, and there is no operator that makes a new one instead")
        else:
            (made,) = self._apply(node, self._call(node, plain))
            assert made is not None
            dtype = own.value.dtype
            if made.value.dtype != dtype or True:
                made = self._emit(lambda x: x.to(dtype), [made], replace(made.value, dtype=dtype))
            result = made
            if seen:
                want: Want = own.value.layout or Replicated()
                result = self.brought(made, want, where(node))
                result = self._emit(torch.Tensor.copy_, [own, result], own.value)
        self._forget(target)
        self._bind(node, result)


SKIPPED = {"aten::_assert_tensor_metadata", "aten::_assert_async", "aten::_assert_scalar", "aten::sym_constrain_range"}


def functional(op: Any) -> Any:
    """The operator that makes a new tensor where `op` changes its first argument; None if there is none."""
    name = str(op._schema.name).partition("::")[2]
    special = {"zero_": "zero", "copy_": "copy", "fill_": "fill"}
    packet = getattr(torch.ops.aten, special.get(name, name.removesuffix("_")), None)
    if packet is None or not name.endswith("_"):
        return None
    for overload in (op._overloadname, "default", "p"):
        found = getattr(packet, overload, None) if overload in packet.overloads() else None
        if found is not None and len(found._schema.arguments) == len(op._schema.arguments):
            return found
    return None


def _nodes_in(node: Node, call: Call) -> list[Node]:
    """The nodes whose tensors a call takes, in the order of the operator's arguments."""
    found: list[Node] = []

    def look(argument: Any) -> None:
        if isinstance(argument, Node):
            found.append(argument)
        elif isinstance(argument, list | tuple):
            for each in argument:
                look(each)

    for i, argument in enumerate(call.op._schema.arguments):
        look(node.args[i] if i < len(node.args) else node.kwargs.get(argument.name))
    return found


def _isolated(run: Any) -> Any:
    """`run`, whose result shares no memory with what it is given."""

    def isolated(*given: Any) -> Any:
        made = run(*given)
        memories = {x.untyped_storage()._cdata for x in given if isinstance(x, Tensor)}

        def own(x: Any) -> Any:
            if isinstance(x, Tensor):
                return x.clone() if x.untyped_storage()._cdata in memories else x
            return type(x)(map(own, x)) if isinstance(x, list | tuple) else x

        return own(made)

    return isolated


def _slots(item: Any) -> list[int]:
    if isinstance(item, Item):
        return [item.slot]
    return [each.slot for each in item if each is not None]


_ = Needs
