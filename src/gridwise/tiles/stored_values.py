"""Which values of a graph are stored between stages, before it is known how large tiles are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ..grid import Box
from .cone import is_whole
from .cuts import middle
from .graph import GlobalValue, Operation, OperatorGraph

HEAVY = 16.0
"""Operations per element from which computing a value again costs more than storing it."""
WIDE = 0.9
"""The share of an input that an operator needs for a quarter of its output from which on that input is stored."""
LARGER = 16
"""How many times larger than an input an output must be for the input to be stored."""
NOMINAL = 4
"""Into how many parts a dim is cut to see what operators need."""
LITTLE = 1 << 16
"""Bytes up to which a value is read whole, and not stored unless computing it takes long."""


def stored_values(graph: OperatorGraph) -> set[GlobalValue]:
    """Sources, outputs, what must be whole, and what several stages would compute again."""
    return worth_keeping(graph, _forced(graph))


def _forced(graph: OperatorGraph) -> set[GlobalValue]:
    """Sources, outputs, what operators that are no local ones make, and what those that are computed whole read."""
    kept = {*graph.inputs.values(), *graph.fixed, *graph.wanted}
    kept |= _of_parameters(graph)
    for operation in graph.operations:
        if operation.backward is not None:
            kept.update(operation.backward.values)
        if not operation.is_local:
            kept.update(operation.outputs)
        if is_whole(operation):
            kept.update(operation.inputs)
        elif operation.is_local:
            kept.update(_widely_needed(operation))
    return kept


def _of_parameters(graph: OperatorGraph) -> set[GlobalValue]:
    """Values computed from parameters, buffers and constants only, that something with an input uses: read whole."""
    used: set[GlobalValue] = set()
    for operation in graph.operations:
        if not all(value.of_parameters for value in operation.outputs):
            used.update(value for value in operation.inputs if value.of_parameters)
    return used


def _widely_needed(operation: Operation) -> list[GlobalValue]:
    """The inputs of which a tile needs much more than its share, or from which something much larger is made."""
    out = operation.outputs[0]
    candidates = [v for v in operation.inputs if v.source is None]
    if not candidates or not prod(out.shape):
        return []
    found = [v for v in candidates if v.nbytes * LARGER <= out.nbytes]
    whole = operation.needs(Box.of_shape(out.shape))
    for d in _free_dims(operation):
        box = middle(out.shape, [NOMINAL if e == d else 1 for e in range(len(out.shape))])
        for value, need, most in zip(operation.inputs, operation.needs(box), whole, strict=True):
            if value in candidates and value.nbytes > LITTLE and need.volume > WIDE * most.volume:
                found.append(value)
    return found


def _free_dims(operation: Operation) -> set[int]:
    """The dims along which cutting the output cuts what is needed of the largest input."""
    shape = operation.outputs[0].shape
    whole = operation.needs(Box.of_shape(shape))
    largest = max(range(len(whole)), key=lambda i: whole[i].volume)
    found = set()
    for d, n in enumerate(shape):
        if n < 2:
            continue
        half = operation.needs(middle(shape, [2 if e == d else 1 for e in range(len(shape))]))[largest]
        if half.volume < 0.9 * whole[largest].volume:
            found.add(d)
    return found


def worth_keeping(graph: OperatorGraph, forced: set[GlobalValue]) -> set[GlobalValue]:
    """These values, and those that several stages would otherwise compute again."""
    kept = set(forced)
    for _ in range(4):
        costs = _costs(graph, kept)
        again = _used_by_several(graph, forced, costs)
        if forced | again == kept:
            break
        kept = forced | again
    return kept


@dataclass
class _Cost:
    """What computing a value from stored ones takes."""

    flops: float
    reads: frozenset[GlobalValue]


def _costs(graph: OperatorGraph, kept: set[GlobalValue]) -> dict[GlobalValue, _Cost]:
    costs: dict[GlobalValue, _Cost] = {}
    for operation in graph.operations:
        flops, reads = operation.flops, frozenset[GlobalValue]()
        for value in operation.inputs:
            if value in kept:
                if value.nbytes > LITTLE and not value.is_fixed:
                    reads |= {value}
            else:
                flops += costs[value].flops
                reads |= costs[value].reads
        for value in operation.outputs:
            costs[value] = _Cost(flops, reads)
    return costs


def _used_by_several(
    graph: OperatorGraph, forced: set[GlobalValue], costs: Mapping[GlobalValue, _Cost]
) -> set[GlobalValue]:
    """Which values to store, decided from the outputs backwards, where it is known which stages use a value.

    One whose statistics are collected is stored however small it is. In backward its cotangents nearly cancel: they are
    summed there, before they go back through what made it, which would multiply their rounding errors.
    """
    users: dict[GlobalValue, set[object]] = {}
    found: set[GlobalValue] = set()
    for operation in reversed(graph.operations):
        stages: set[object] = set()
        if operation.is_local:
            for value in operation.outputs:
                if value in forced or value in found:
                    stages.add(value)
                    continue
                of_value = users.get(value, set())
                cost = costs[value]
                heavy = cost.flops > HEAVY * max(1, prod(value.shape))
                is_collected = any(isinstance(each, Operation) for each in of_value)
                counts = value.nbytes > LITTLE or is_collected or cost.flops > HEAVY * LITTLE
                if len(of_value) > 1 and (heavy or len(cost.reads) > 1) and counts:
                    found.add(value)
                    stages.add(value)
                else:
                    stages |= of_value
        else:
            stages.add(operation)
        for value in operation.inputs:
            users.setdefault(value, set()).update(stages)
    return found
