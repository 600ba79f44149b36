"""Placing: turn a recording into a program, operator by operator, by the table of rules.

    for each node    ask its rule where its tensors have to lie; add the movements that bring them there, each once;
                     add the operator; note where its outputs lie
    no rule          gather the tensors, compute on every worker, and report it; refused for operators that change their
                     arguments or return views of them, and for all operators if the user asked for that

All sizes are known, so nothing is sent, except that the workers vote on the implementation of large convolutions.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Node

from ..errors import UnsupportedError
from ..grid import Grid, Layout
from ..operators.call import order_of
from ..partition import Partition
from ..torch_internals.operators import OpOverload, name_of, schema_of
from ..torch_internals.switches import SWITCHES, exit_autocast, set_grad_enabled
from . import inner_gradients
from .aliasing import Aliases, isolated
from .autograd_functions import PlacedFunction, differentiated
from .checks import ChecksOf
from .movement import enter, leave
from .placement import SMALL, Cut, GlobalTensor, Partial, Placement, Replicated, Want, Workers
from .program import Checkpoint, Program, Step, free_early, leave_autocast
from .recording.checks import is_check
from .recording.recording import (
    GraphRegion,
    Recording,
    ValueSource,
    arguments_of,
    memory_of,
    nodes_in,
    tensors_in,
    where,
    written_by,
)
from .report import Gather, Report
from .rules import Call, NoRule, Placed
from .rules.answer import answer, functional, is_elementwise
from .rules.pointwise import pointwise
from .tape import Item, Tape

SKIPPED = {"aten::_assert_tensor_metadata", "aten::_assert_scalar", "aten::sym_constrain_range"}
"""Run-time checks that recording has already made."""


def place(
    recording: Recording,
    input_layouts: Sequence[Layout | None],
    P_x: Partition,
    gather: Literal["report", "refuse"] = "report",
    name: str = "the model",
) -> Program:
    """The program of a recording whose inputs have these layouts; None for inputs that every worker holds.

    All workers of `P_x` enter together.

    Raises
    ------
    UnsupportedError : naming every operator that cannot be run on blocks, with its module and line
    """
    workers = Workers(P_x.transport, P_x.geometry)
    operators = sum(isinstance(node.target, OpOverload) for node in recording.module.graph.nodes)
    report = Report(workers.size, operators)
    placing = Placing(recording.module.graph, Tape(workers, report), name, recording.regions, recording.sources)
    sources = placing.enter(recording.sources, input_layouts)
    placing.walk()
    results = placing.leave()
    if placing.problems:
        raise UnsupportedError(
            f"{name} cannot be distributed: {len(placing.problems)} operator(s) cannot be run on blocks.\n"
            + "\n".join(f"  {problem}" for problem in placing.problems)
        )
    if gather == "refuse" and report.gathers:
        raise UnsupportedError(
            f"{name} gathers tensors, and `gather` (='refuse') forbids that.\n"
            + "\n".join(f"  {each}" for each in report.gathers)
            + "\n  fix: gather='report', or a rule of your own (gridwise.register_rule)."
        )
    slots = [item.slot for item in results]
    free_early(placing.tape.steps, set(slots))
    return Program(
        workers,
        name,
        placing.tape.count,
        sources,
        recording.constants,
        placing.tape.steps,
        slots,
        [item.value.placement for item in results],
        report,
        recording.draws,
        frozenset(placing.changed_slots),
    )


class Placing:
    """One pass over a graph, which adds the steps of its nodes to a tape."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        tape: Tape,
        name: str,
        regions: Mapping[int, GraphRegion],
        sources: Mapping[str, ValueSource],
    ) -> None:
        self.graph, self.tape, self.name, self.regions = graph, tape, name, regions
        self.workers = tape.workers
        self.sources, self.aliases, self.checks = sources, Aliases(graph, sources), ChecksOf(graph)
        self.items: dict[Node, Item | list[Item]] = {}
        self.problems: list[str] = []
        self.changed_slots: set[int] = set()
        """The slots of placeholders that are changed in place."""
        self._slots: dict[int, set[int]] = {}
        """The slots of tensors that share memory, by that memory."""
        self._inside: list[GraphRegion] = []
        self._entered: dict[Node, tuple[int, Any]] = {}

    # From the inputs to the outputs

    def enter(
        self, sources: Mapping[str, ValueSource], layouts: Sequence[Layout | None]
    ) -> list[tuple[int, ValueSource]]:
        """Bind the placeholders; the slot and the source of each."""
        found = []
        for node in self.placeholders():
            source, x = sources[node.name], node.meta["val"]
            self.tape.name = f"{source.kind} {source.name} of {self.name}"
            layout = layouts[int(source.name)] if source.kind == "input" and self.workers.size > 1 else None
            item = self.bind(node, value_of(x, Replicated() if layout is None else Cut(layout)))
            found.append((item.slot, source))
            if any(node in written_by(user) for user in node.users):
                self.changed_slots.add(item.slot)
            elif source.kind == "input" and (x.is_floating_point() or x.is_complex()):
                move = enter(item.value, self.workers, f"input {source.name} of {self.name}")
                if move is not None:
                    self._rebind(node, self.tape.add(move, [item], item.value)[0])
        return found

    def bind(self, placeholder: Node, value: GlobalTensor) -> Item:
        """Give a placeholder a slot."""
        item = Item(self.tape.new_slot(), value)
        self._rebind(placeholder, item)
        return item

    def placeholders(self) -> list[Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    def walk(self) -> None:
        """Add the steps of all nodes; the modes of autograd and autocast are afterwards what they were."""
        mode, passed = torch.is_grad_enabled(), False
        try:
            for node in self.graph.nodes:
                self._move_to_region(node)
                if passed and self.checks.placed and not self._inside:
                    self.tape.steps.append(self.checks.agree(self.workers, self.name))
                if node.op == "call_function" and node not in self.checks.deferred:
                    self.tape.name = where(node)
                    self._add(node)
                passed = passed or node is self.checks.last
        finally:
            set_grad_enabled(mode)
            leave_autocast(mode for _, mode in self._entered.values())

    def _add(self, node: Node) -> None:
        if node.target in SWITCHES:
            self._switch(node)
        elif node.target is operator.getitem:
            several = self.items[node.args[0]]  # type: ignore[index]
            assert isinstance(several, list)
            self._rebind(node, several[node.args[1]])  # type: ignore[index]
        elif not isinstance(node.target, OpOverload) and node.target not in inner_gradients.NODES:
            self._refuse(node, "it is no operator of torch")
        elif node.target in inner_gradients.NODES or is_check(node) or not _is_settled(node):
            try:
                self._place(node)
            except NoRule as error:
                self._refuse(node, str(error))

    def results(self) -> list[Item]:
        """What the graph returns, where it lies."""
        (output,) = (node for node in self.graph.nodes if node.op == "output")
        return [self.item(each) for each in output.args[0]]

    def leave(self) -> list[Item]:
        """What the graph returns, as the user gets it: tensors in balanced blocks, and only scalars replicated."""
        found, name = [], f"an output of {self.name}"
        self.tape.name = name
        for item in self.results():
            if item.value.dim and self.workers.size > 1:
                by_batch = Grid(self.workers.ranks, (self.workers.size,) + (1,) * (item.value.dim - 1))
                grid = by_batch if item.value.layout is None else item.value.layout.grid
                item = self.tape.moved_to(item, Layout.balanced(grid, item.value.shape), name)
            move, placement = leave(item.value, self.workers, name)
            value = replace(item.value, placement=placement)
            found.append(Item(item.slot, value) if move is None else self.tape.add(move, [item], value)[0])
        return found

    def item(self, node: Node) -> Item:
        """The current item of a node's tensor."""
        found = self.items[self.aliases.same(node)]
        assert isinstance(found, Item)
        return found

    def _rebind(self, node: Node, item: Item) -> None:
        self.items[self.aliases.same(node)] = self.items[node] = item
        memory = memory_of(node)
        if memory is not None:
            self._slots.setdefault(memory, set()).add(item.slot)

    def _bind_results(self, node: Node, made: list[Item]) -> None:
        if isinstance(node.meta.get("val"), Tensor):
            self._rebind(node, made[0])
        else:
            self.items[node] = made

    def _refuse(self, node: Node, reason: str) -> None:
        """Note a problem and continue, so that all problems are found."""
        self.problems.append(f"{where(node)}: {reason}")
        made = [Item(self.tape.new_slot(), value_of(x, Replicated())) for x in tensors_in(node.meta.get("val"))]
        self._bind_results(node, made)

    def _switch(self, node: Node) -> None:
        """Switch a mode for the steps that follow; during placing too, since rules depend on it."""
        if node.target is exit_autocast:
            slot, mode = self._entered.pop(node.args[0])  # type: ignore[arg-type]
            exit_autocast(mode)
            self.tape.steps.append(Step(exit_autocast, (slot,), None))
        else:
            assert callable(node.target)
            slot, switch = self.tape.new_slot(), partial(node.target, *node.args)
            self._entered[node] = slot, switch()
            self.tape.steps.append(Step(switch, (), slot))

    def _move_to_region(self, node: Node) -> None:
        """End the regions that the node is no longer in, and begin those that it is in."""
        wanted: list[GraphRegion] = []
        number = node.meta.get("region") if node.op == "call_function" else None
        while number is not None:
            wanted.insert(0, self.regions[number])
            number = self.regions[number].within
        while self._inside and self._inside != wanted[: len(self._inside)]:
            self._end_region(self._inside.pop())
        for region in wanted[len(self._inside) :]:
            self._inside.append(region)
            self.tape.begin()

    def _end_region(self, region: GraphRegion) -> None:
        live = [item.slot for found in self.items.values() for item in ([found] if isinstance(found, Item) else found)]
        inner, inputs, outputs = self.tape.end(live)
        if region.kind == "checkpoint":
            run: Checkpoint | PlacedFunction = Checkpoint(inner, inputs, outputs, region.keeps_random_state)
        else:
            assert region.backward is not None
            try:
                run, inputs = differentiated(self, region.backward, inner, inputs, outputs)
            except NoRule as error:
                self.problems.append(f"{region.backward.function.__name__}.backward: {error}")
                return
        self.tape.steps.append(Step(run, inputs, outputs, True, self.tape.next_draw()))

    # Operators

    def _place(self, node: Node) -> None:
        op = node.target
        if is_check(node):
            self.items[node] = self.checks.place(self, node)
            return
        if not isinstance(op, OpOverload):
            self._bind_results(node, inner_gradients.place_gradients(self, node))
            return
        written = written_by(node)
        if node in self.aliases.keeps_alias:
            self._completed(node.all_input_nodes[0])
        if not written:
            self._bind_results(node, self._apply(node, self._call(node, op)))
        elif len(written) > 1 or written[0] is not node.args[0]:
            raise NoRule("it changes other arguments than its first")
        else:
            result = self._write(node, op, written[0])
            memory = memory_of(written[0])
            self.tape.forget(self._slots.get(memory, set()) if memory is not None else ())
            self._rebind(node, result)

    def _call(self, node: Node, op: OpOverload, written: bool = False) -> Call:
        def given(argument: object) -> Any:
            if isinstance(argument, Node):
                return self.item(argument).value
            return [given(each) for each in argument] if isinstance(argument, list | tuple) else argument

        results = tuple(value_of(x, Replicated()) for x in tensors_in(node.meta.get("val")))
        args, named = [given(each) for each in node.args], {key: given(value) for key, value in node.kwargs.items()}
        for argument in schema_of(node.target).arguments[len(args) :]:
            if argument.has_default_value():  # `op` may be a substitute with other defaults, or none
                named.setdefault(argument.name, argument.default_value)
        keeps_alias = node in self.aliases.keeps_alias
        return Call(op, tuple(args), named, results, self.workers, where(node), keeps_alias, written)

    def _apply(self, node: Node, call: Call, placed: Placed | None = None) -> list[Item]:
        """Add the steps of one call, placed by its rule unless `placed` is given; its outputs."""
        placed = placed or answer(call)
        given = [self.item(each) for each in nodes_in(list(arguments_of(node, call.op).values()))]
        wants = list(placed.inputs) or [None] * len(given)
        self._note_gathers(node, call, placed, wants)
        self.tape.report.moved += placed.moved
        moved = [self.tape.moved_to(item, want, call.name) for item, want in zip(given, wants, strict=True)]
        run = isolated(placed.run) if node in self.aliases.isolates else placed.run
        count = len(call.results)
        outputs = placed.outputs if isinstance(placed.outputs, Sequence) else [placed.outputs] * count
        values = [replace(value, placement=to) for value, to in zip(call.results, outputs, strict=True)]
        if not isinstance(node.meta.get("val"), Tensor):
            return self.tape.add(run, moved, values, placed.draws)
        self.tape.report.count(values[0])
        return self.tape.add(run, moved, values[0], placed.draws)

    def _write(self, node: Node, op: OpOverload, target: Node) -> Item:
        """Add an operator that changes its first argument: in place if other tensors observe it, else perhaps not."""
        own, in_place, plain = self._completed(target), node in self.aliases.in_place, functional(op)
        elementwise = any(each is not None and is_elementwise(each) for each in (op, plain))
        others = [self.item(each).value for each in node.all_input_nodes if each is not target]
        spreads = own.value.layout is None and any(value.layout is not None for value in others)
        if elementwise and (in_place or not spreads):
            call = self._call(node, op, written=True)
            (made,) = self._apply(node, call, pointwise(call))
            assert made.value.placement == own.value.placement, (node, made, own)
            return Item(made.slot, own.value)
        if plain is None:
            raise NoRule("it changes a tensor, and no operator makes a new one instead")
        (made,) = self._apply(node, self._call(node, plain))
        dtype = own.value.dtype
        (made,) = self.tape.add(lambda x: x.to(dtype), [made], replace(made.value, dtype=dtype))
        if not in_place:
            return made
        made = self.tape.moved_to(made, own.value.layout or Replicated(), where(node))
        return self.tape.add(Tensor.copy_, [own, made], own.value)[0]

    def _completed(self, node: Node) -> Item:
        """The item of a tensor that shares its memory with others: the sum, if the workers have summands."""
        item = self.item(node)
        if isinstance(item.value.placement, Partial):
            item = self.tape.moved_to(item, Replicated(), where(node))
            self._rebind(node, item)
        return item

    def _note_gathers(self, node: Node, call: Call, placed: Placed, wants: Sequence[Want]) -> None:
        for value, want in zip(call.tensors, wants, strict=True):
            whole = isinstance(want, Replicated) and value.layout is not None
            if whole and (placed.gathers is not None or value.volume > SMALL):
                what = "combines" if placed.combines else "needs"
                reason = placed.gathers or f"it {what} all of a tensor of shape {value.shape}"
                module, line = node.meta.get("module") or "", node.meta.get("line") or ""
                name = str(call.op).removeprefix("aten.").removesuffix(".default")
                gather = Gather(name, module, line, reason, value.nbytes, placed.gathers is None, placed.combines)
                self.tape.report.gathers.append(gather)


def _is_settled(node: Node) -> bool:
    """Whether an operator was done with when it was recorded: it checks what is known, or makes no tensor."""
    return name_of(node.target) in SKIPPED or not (node.users or tensors_in(node.meta.get("val")))


def value_of(x: Tensor, placement: Placement) -> GlobalTensor:
    shape = tuple(int(n) for n in x.shape)
    return GlobalTensor(shape, x.dtype, x.device, placement, order=order_of(x))
