"""`torch.autograd.Function`s: forward is a part of the model like any other; backward is a graph that runs by tiles itself.

forward     the operators of the recorded forward, without gradients; what leaves it is stored
backward    stored values, cotangents of the outputs ──► the recorded backward ──► added to the cotangents of inputs
"""

from __future__ import annotations

from dataclasses import dataclass

from ..models.recording.recording import Backward, Recording, ValueSource
from .graph import GlobalValue, OperatorGraph


@dataclass(eq=False)
class OwnBackward:
    """How one call of a Function is differentiated."""

    graph: OperatorGraph
    """Its inputs are the values of `saved`, then the cotangents of `outputs`; its outputs are the gradients of `inputs`."""
    saved: tuple[GlobalValue, ...]
    outputs: tuple[GlobalValue, ...]
    inputs: tuple[GlobalValue, ...]

    @property
    def values(self) -> tuple[GlobalValue, ...]:
        """All that is stored for it."""
        return (*self.saved, *self.outputs, *self.inputs)


def recording_of(backward: Backward) -> Recording:
    """The backward of a Function as a recording, whose inputs are what it is given."""
    sources: dict[str, ValueSource] = {}
    constants = {}
    for node in backward.module.graph.nodes:
        if node.op == "placeholder":
            sources[node.name] = ValueSource("input", str(len(sources)))
    for node in backward.module.graph.nodes:
        if node.op == "get_attr":
            constants[node.name] = getattr(backward.module, node.target)
            sources[node.name] = ValueSource("constant", node.name)
    return Recording(backward.module, sources, constants, None, 0)  # type: ignore[arg-type]
