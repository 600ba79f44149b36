"""Checks on values, on blocks: each worker computes its share of every check, and all of them agree once per call.

What a check compares with, the largest or the smallest element of a tensor or whether all or any are true, is taken of
each block. Steps of the program turn these into integers of the same order; one all-reduce gives their maxima; and from
those every worker works out the same outcome of all checks. The rest of a check costs no message either: operators on
single numbers that are read by checks only are left to that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node, map_arg

from ..comm.graph_breaks import capturing
from ..operators.functions import short_name
from ..torch_internals.operators import OpOverload
from .placement import Replicated, Workers
from .program import FailedCheck, Step
from .recording.checks import is_check, named
from .recording.recording import written_by
from .rules import NoRule
from .rules.answer import is_elementwise
from .tape import Item

if TYPE_CHECKING:
    from .placing import Placing

LARGEST, SMALLEST = {"max", "amax", "any", "_is_any_true"}, {"min", "amin", "all", "_is_all_true"}
"""Operators whose result for the whole is the largest, or the smallest, of those for blocks."""
TRUTHS = {"any", "all", "_is_any_true", "_is_all_true"}
LEAST = torch.iinfo(torch.int64).min
"""That of an empty block."""


@dataclass(frozen=True)
class _Share:
    """A number that workers have shares of: that of a node, from its own tensor or from that which the node reduces."""

    node: Node
    source: Node

    @property
    def kind(self) -> str:
        """The reduction; empty if there is none."""
        return _kind(self.node) if self.node is not self.source else ""

    @property
    def is_smallest(self) -> bool:
        return self.kind in SMALLEST

    @property
    def is_truth(self) -> bool:
        return self.kind in TRUTHS


@dataclass
class ChecksOf:
    """The checks of a graph."""

    graph: torch.fx.Graph
    last: Node | None = None
    """The last of them."""
    deferred: set[Node] = field(default_factory=set)
    """Nodes on single numbers that only checks read; they are not placed."""
    placed: list[tuple[Node, list[_Share], int]] = field(default_factory=list)
    """The checks so far, with the slots of the shares."""

    def __post_init__(self) -> None:
        for node in reversed(self.graph.nodes):
            if is_check(node):
                self.last = self.last or node
            elif self.last is not None and _is_of_a_check(node, self.deferred):
                self.deferred.add(node)

    def place(self, placing: Placing, node: Node) -> Item:
        """Add a step that computes this worker's shares of a check."""
        shares = self._shares(node)
        items = []
        for share in shares:
            if share.node.meta["val"].is_complex():
                raise NoRule("a check on a complex number")
            want = None if share.kind else Replicated()
            items.append(placing.tape.moved_to(placing.item(share.source), want, placing.tape.name))
        run = _Shares([(bool(share.kind), share.is_truth, share.is_smallest) for share in shares])
        like = replace(items[0].value, shape=(len(shares),), dtype=torch.int64, placement=Replicated(), order=())
        (made,) = placing.tape.add(run, items, like)
        self.placed.append((node, shares, made.slot))
        return made

    def _shares(self, check: Node) -> list[_Share]:
        found: dict[Node, _Share] = {}
        left = [check.args[0]]
        while left:
            node = left.pop()
            assert isinstance(node, Node)
            if node in found:
                continue
            if node not in self.deferred:
                found[node] = _Share(node, node)
            elif _reduces(node) and node.all_input_nodes[0] not in self.deferred:
                found[node] = _Share(node, node.all_input_nodes[0])
            else:
                left += node.all_input_nodes
        return list(found.values())

    def agree(self, workers: Workers, name: str) -> Step:
        """The step in which the workers agree on the checks so far."""
        run = _Agreement(workers, name, [(node, shares) for node, shares, _ in self.placed], self.deferred)
        slots = tuple(slot for *_, slot in self.placed)
        self.placed = []
        return Step(run, slots, None, name=f"the checks of {name}")


def _kind(node: Node) -> str:
    return short_name(node.target) if isinstance(node.target, OpOverload) else ""


def _is_of_a_check(node: Node, deferred: set[Node]) -> bool:
    """Whether an operator makes a single number that only checks read, from numbers or by a reduction of everything."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.numel() != 1 or not node.users or not isinstance(node.target, OpOverload):
        return False
    if written_by(node) or not all(is_check(user) or user in deferred for user in node.users):
        return False
    return is_elementwise(node.target) or _reduces(node)


def _reduces(node: Node) -> bool:
    return _kind(node) in LARGEST | SMALLEST and len(node.all_input_nodes) == 1


class _Shares:
    """This worker's numbers as integers of the same order, of which the workers take the maximum."""

    def __init__(self, shares: Sequence[tuple[bool, bool, bool]]) -> None:
        self.shares = shares

    @torch.no_grad()
    def __call__(self, *tensors: Tensor) -> Tensor:
        return torch.stack([_ordered(x.detach(), *share) for x, share in zip(tensors, self.shares, strict=True)])


def _ordered(x: Tensor, reduces: bool, is_truth: bool, is_smallest: bool) -> Tensor:
    if not x.numel():
        return torch.full((), LEAST, device=x.device)
    if is_truth:
        x = x.all() if is_smallest else x.any()
    elif reduces:
        x = x.amin() if is_smallest else x.amax()
    x = x.reshape(())
    if not x.is_floating_point():
        number = x.to(torch.int64)
        return ~number if is_smallest else number
    bits = (-x.double() if is_smallest else x.double()).view(torch.int64)
    ordered = torch.where(bits < 0, bits ^ torch.iinfo(torch.int64).max, bits)
    return torch.where(x.isnan(), torch.iinfo(torch.int64).max, ordered)  # torch's extrema are nan if any element is


def _number(ordered: int, share: _Share) -> Tensor:
    """The number of the whole."""
    dtype = share.node.meta["val"].dtype
    if ordered == LEAST and share.is_truth:  # all of no elements are true, and none of them is
        return torch.tensor(share.is_smallest, dtype=dtype)
    if not dtype.is_floating_point:
        return torch.tensor(~ordered if share.is_smallest else ordered).to(dtype)
    if ordered == torch.iinfo(torch.int64).max:
        return torch.tensor(float("nan"), dtype=dtype)
    bits = torch.tensor(ordered if ordered >= 0 else ordered ^ torch.iinfo(torch.int64).max)
    number = bits.view(torch.float64)
    return (-number if share.is_smallest else number).to(dtype)


class _Agreement:
    """The outcome of checks, from everybody's shares."""

    def __init__(
        self, workers: Workers, name: str, checks: Sequence[tuple[Node, Sequence[_Share]]], deferred: set[Node]
    ) -> None:
        self.workers, self.name = workers, name
        self.checks = [(_expression(node.args[0], deferred), shares, named(node)) for node, shares in checks]

    def __call__(self, *ordered: Tensor) -> None:
        capture = capturing()
        if capture is None:
            self._agree(ordered)
        else:
            capture.run_between_graphs(lambda: self._agree(ordered))

    def _agree(self, ordered: Sequence[Tensor]) -> None:
        own = torch.cat(list(ordered))
        is_known = not own.is_meta
        numbers = own.cpu().numpy() if is_known else np.zeros(len(own), dtype=np.int64)
        if self.workers.size > 1:
            self.workers.transport.all_max(numbers, self.workers.team, f"the checks of {self.name}")
        if not is_known:  # a plan
            return
        left = iter(numbers.tolist())
        for expression, shares, (line, message) in self.checks:
            if not bool(expression({share.node: _number(next(left), share) for share in shares})):
                raise FailedCheck(f"{self.name}: a check on values does not hold:  {line}", message)


def _expression(condition: Any, deferred: set[Node]) -> Callable[[Mapping[Node, Tensor]], Tensor]:
    """A function from the numbers of the shares to the condition of a check; it keeps no other nodes."""
    order = list[Node]()

    def visit(node: Node) -> None:
        for each in node.all_input_nodes if node in deferred else ():
            visit(each)
        if node not in order:
            order.append(node)

    visit(condition)

    @torch.no_grad()
    def evaluate(numbers: Mapping[Node, Tensor]) -> Tensor:
        values = dict(numbers)
        for node in order:
            if node in deferred and node not in values and all(each in values for each in node.all_input_nodes):
                target: Any = node.target
                values[node] = target(
                    *map_arg(node.args, values.__getitem__), **map_arg(node.kwargs, values.__getitem__)
                )
        return values[condition]

    return evaluate
