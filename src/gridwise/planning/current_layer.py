"""Which layer of a model is running: in forward by the step of its program, in backward by the autograd node.

Autograd numbers its nodes in the order of their creation, so a layer's nodes are those between the number before its step
and the number after it. Steps that backward runs again for a checkpoint report their names as in forward.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ..grid import Layout, Route
from ..models.placement import Cut
from ..models.program import Step
from ..torch_internals.autograd import current_node, next_number, number_of
from .halos import LayerHalo
from .layer_names import OUTSIDE, layer_of

UNORDERED_NODES = 1 << 62
"""Larger numbers belong to nodes that accumulate the gradient of a parameter: they are not numbered in order."""


class CurrentLayer:
    """The layer that is running: pass `watch` to `models.program.watched_steps`, then call `current`."""

    def __init__(self) -> None:
        self.layouts: dict[str, Layout] = {}
        """How the output of each layer is cut, in layer order; outputs that are whole on every worker are left out."""
        self.names: dict[str, None] = {}
        """All layers, in order."""
        self.halos: dict[str, LayerHalo] = {}
        """By layer: what this worker fetches for it, as of its first fetch."""
        self.input_layout: tuple[int, Layout] | None = None
        """This worker's rank, and how the input of the model is cut; without them no halos are kept."""
        self._step: Step | None = None
        self._layout_of_slot: dict[int, Layout] = {}
        """By slot: how the tensor in it is cut."""
        self._now = OUTSIDE
        self._starts, self._layers = [0], [OUTSIDE]
        self._steps_run: dict[int, list[Step]] = defaultdict(list)
        """By the id of a step: itself, once per run. This keeps the steps alive, so that no id is reused."""

    @property
    def passes(self) -> int:
        """How often the model was run."""
        return max(map(len, self._steps_run.values()), default=0)

    def watch(self, step: Step) -> Callable[..., Any]:
        """A function that runs the step and makes its layer the current one meanwhile."""
        if step.name and current_node() is None:
            self._steps_run[id(step)].append(step)
            name = layer_of(step.name)
            self.names[name] = None
            if isinstance(step.placement, Cut):
                self.layouts[name] = step.placement.layout
                self._layout_of_slot.update(dict.fromkeys(step.made[-1:], step.placement.layout))

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
        """Keep what the running step fetches, if it is known how the tensor that it fetches from is cut."""
        if self.input_layout is None or self._step is None or route.owned is None or route.needed is None:
            return
        rank, whole = self.input_layout
        known = self._layout_of_slot
        for layout in [known[slot] for slot in self._step.inputs if slot in known] or [whole]:
            if layout.block(rank) == route.owned:
                self.halos.setdefault(self._now, LayerHalo(layout, route.owned, route.needed))

    def _enter(self, name: str) -> None:
        self._now = name
        if current_node() is not None:
            return  # run again for a checkpoint: backward goes on through the nodes of forward, and each thread counts its own
        self._starts.append(next_number())
        self._layers.append(name)

    def current(self) -> str:
        """The layer that an operator called now belongs to."""
        if self._now is not OUTSIDE:
            return self._now
        node = current_node()
        number = UNORDERED_NODES if node is None else number_of(node)
        return self._layers[bisect_right(self._starts, number) - 1] if number < UNORDERED_NODES else OUTSIDE
