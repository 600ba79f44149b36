"""Which layer of a model is being run: in forward by the step of its program, in backward by the node of autograd.

Nodes of autograd are numbered in the order in which they are made, so those of a layer are those between the number before
its step and the number after it. Steps that backward runs again, of a checkpoint, say their names as in forward.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from ..grid import Layout, Route
from ..models.placement import Cut
from ..models.program import Step
from .halos import LayerHalo
from .layer_names import OUTSIDE, layer_of

MANY = 1 << 62
"""Numbers beyond are of nodes that take a gradient to its parameter: they have none of their own."""


class CurrentLayer:
    """Give `watch` to `models.program.watched_steps`, and ask for `current`."""

    def __init__(self) -> None:
        self.layouts: dict[str, Layout] = {}
        """How the output of each layer is cut, in the order of the layers; those that every worker has are left out."""
        self.names: dict[str, None] = {}
        """All layers, in order."""
        self.halos: dict[str, LayerHalo] = {}
        """What this worker fetches for a layer, the first time that it does."""
        self.given: tuple[int, Layout] | None = None
        """Which worker this is, and how the input of the model is cut; without it no halos are kept."""
        self._step: Step | None = None
        self._made: dict[int, Layout] = {}
        """By slot: how what lies there is cut."""
        self._now = OUTSIDE
        self._starts, self._layers = [0], [OUTSIDE]
        self._runs: dict[int, list[Step]] = defaultdict(list)
        """By the id of a step, its runs; the steps stay alive, so that their ids stay their own."""

    @property
    def passes(self) -> int:
        """How often the model was run."""
        return max(map(len, self._runs.values()), default=0)

    def watch(self, step: Step) -> Callable[..., Any]:
        """The step, which says its name while it runs."""
        if step.name and torch._C._current_autograd_node() is None:
            self._runs[id(step)].append(step)
            name = layer_of(step.name)
            self.names[name] = None
            if isinstance(step.placement, Cut):
                self.layouts[name] = step.placement.layout
                self._made.update(dict.fromkeys(step.made[-1:], step.placement.layout))

        def run(*args: object) -> Any:
            before = self._now, self._step
            self._step = step
            self._enter(layer_of(step.name) if step.name else before[0])
            try:
                return step.run(*args)
            finally:
                self._step = before[1]
                self._enter(before[0])

        return run

    def fetched(self, route: Route) -> None:
        """What the step that runs now fetches; kept if it is known how the tensor is cut that it fetches from."""
        if self.given is None or self._step is None or route.owned is None or route.needed is None:
            return
        rank, whole = self.given
        for layout in [self._made[slot] for slot in self._step.inputs if slot in self._made] or [whole]:
            if layout.block(rank) == route.owned:
                self.halos.setdefault(self._now, LayerHalo(layout, route.owned, route.needed))

    def _enter(self, name: str) -> None:
        self._now = name
        self._starts.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._layers.append(name)

    def current(self) -> str:
        """The layer to which an operator belongs that is called now."""
        if self._now is not OUTSIDE:
            return self._now
        node = torch._C._current_autograd_node()
        number = MANY if node is None else node._sequence_nr()
        return self._layers[bisect_right(self._starts, number) - 1] if number < MANY else OUTSIDE
