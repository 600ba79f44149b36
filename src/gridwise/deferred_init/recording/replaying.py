"""Replaying: run the part of the tape that some values need, in the order of recording, on real tensors.

    content(cell, t)   the nodes that wrote to the cell before t, back to the last one that overwrote all of it
    value              the node that made it, and recursively its arguments, each with its content at that node's time

Each node runs once, in order of time, so in-place operators and views find the storages as they were. Random nodes
start from their mark. Intermediate tensors are dropped after their last use.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gridwise.deferred_init.random.generator import generator_at
from gridwise.deferred_init.random.streams import DEFAULT, GENERATOR_LOCK, Mark
from gridwise.deferred_init.recording.tape import Cell, External, TapeNode, Value
from gridwise.fake.geometry import geometry, on_storage
from gridwise.fake.nested import Args, Kwargs, leaves, mapped
from gridwise.progress import ProgressBar
from gridwise.torch_internals.modes import without_modes
from gridwise.torch_internals.operators import OpOverload, schema_of


def nodes_for(values: Sequence[Value], given: Collection[Value] = (), before: float = math.inf) -> list[TapeNode]:
    """The nodes that must run, in order, for these values as they were at time `before`; `given` ones exist already."""
    filled = {value.cell for value in given}  # storages whose content exists already
    chosen: set[TapeNode] = set()
    seen: set[tuple[Cell, float]] = set()
    waiting: list[tuple[Value, float]] = [(value, before) for value in values if value not in given]
    nodes: list[TapeNode] = []

    def choose(node: TapeNode) -> None:
        if node not in chosen:
            chosen.add(node)
            nodes.append(node)

    while waiting or nodes:
        if nodes:
            node = nodes.pop()
            made_here = {output.cell for output in node.outputs if output is not None}
            for position, value in enumerate(node.inputs()):
                # a view reads no data, and an overwrite does not read what it overwrites
                blind = value.cell in made_here or (node.overwrites and position == 0)
                if value not in given:
                    waiting.append((value, -math.inf if blind else node.time))
            continue
        value, time = waiting.pop()
        choose(value.node)
        if time > 0 and value.cell not in filled and (value.cell, time) not in seen:
            seen.add((value.cell, time))
            for write in reversed(value.cell.writes):
                if write.time < time:
                    choose(write)
                    if write.overwrites:
                        break
    return sorted(chosen, key=lambda node: node.time)


@contextmanager
def replaying() -> Iterator[None]:
    """In the body: one thread at a time, no dispatch modes, no autocast."""
    with (
        GENERATOR_LOCK,
        without_modes(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        torch.inference_mode(False),
    ):
        yield


def replay(
    values: Sequence[Value],
    given: dict[Value, Tensor] | None = None,
    before: float = math.inf,
    bar: ProgressBar | None = None,
) -> list[Tensor]:
    """The real tensors of these values; `given` holds tensors that exist already."""
    env: dict[Value, Tensor] = dict(given or {})
    nodes = nodes_for(values, env, before)
    uses = Counter(value for node in nodes for value in node.inputs())
    uses.update(values)
    with replaying():
        for done, node in enumerate(nodes, 1):
            _run(node, env)
            for value in node.inputs():
                uses[value] -= 1
                if not uses[value]:
                    env.pop(value, None)
            if bar is not None:
                bar.total = len(nodes)
                bar.report(done)
    return [env[value] for value in values]


def _run(node: TapeNode, env: dict[Value, Tensor]) -> None:
    args, kwargs = real(node.args, env), real(node.kwargs, env)
    with torch.set_grad_enabled(node.grad_enabled), _default_dtype(node.default_dtype):
        result = node.func(*args, **kwargs) if node.mark is None else run_at(node.mark, node.func, args, kwargs)[0]
        results = leaves(result)
        for output in node.outputs:
            made = next(results)
            if output is not None:
                assert isinstance(made, Tensor)
                env[output] = _as_recorded(made, output) if output.cell.writes[0] is node else made


def _as_recorded(made: Tensor, output: Value) -> Tensor:
    """`made` with the strides that its views were recorded with. Some results, such as those of FFTs, have strides
    other than the meta kernels say."""
    meta = output.meta
    if made.stride() == meta.stride() and made.storage_offset() == meta.storage_offset():
        return made
    storage = torch.UntypedStorage(meta.untyped_storage().nbytes(), device=made.device)
    return on_storage(storage, geometry(meta)).copy_(made)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run_at(mark: Mark, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> tuple[Any, Tensor]:
    """The result of a random operator run from its mark, and the generator's state after it. Torch's own generators are
    restored afterwards; if the operator accepts a generator they are not even touched."""
    if mark.device is None and _takes_generator(func):
        own = generator_at(mark.state())
        return func(*args, **{**kwargs, "generator": own}), _noted(mark, own.get_state())
    generator = DEFAULT if mark.device is None else torch.cuda.default_generators[mark.device.index]
    before = generator.get_state()
    generator.set_state(mark.state())
    try:
        return func(*args, **kwargs), _noted(mark, generator.get_state())
    finally:
        generator.set_state(before)


def _noted(mark: Mark, after: Tensor) -> Tensor:
    if mark.end is not None:
        mark.stream.reached(mark.end, after)
    return after


@cache
def _takes_generator(func: Callable[..., Any]) -> bool:
    return isinstance(func, OpOverload) and any(argument.name == "generator" for argument in schema_of(func).arguments)


def real(recorded: Any, env: Mapping[Value, Tensor]) -> Any:
    """Recorded arguments with values replaced by real tensors."""

    def one(item: object) -> object:
        if isinstance(item, Value):
            return env[item]
        return item.checked() if isinstance(item, External) else item

    return mapped(one, recorded)
