"""A rehearsal: the sequential model's graph, run with the global shapes and without numbers.

Every worker rehearses a call with a new structure of input before anything runs. What torch refuses (a view that does not
come out even, channels that do not fit) is so refused by all workers, in one sentence, and none is left waiting.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import Graph

from ...errors import PartitionError
from .trace import code_of

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Shapes:
    """The global shapes of a model's tensors."""

    nodes: dict[str, Shape]
    """By the name of a node."""
    outputs: list[Shape]
    """Of the tensors that the model returns, in their order."""


class Rehearsal:
    """A model without numbers, and its graph as it was before the conversion."""

    def __init__(self, model: torch.nn.Module, graph: Graph, name: str) -> None:
        self.name = name
        self.checks: list[tuple[str, int, str, int, str]] = []
        """Dims of nodes that have to be equal: two nodes, a dim of each, and what combines them."""
        self._module = torch.fx.GraphModule(without_numbers(model), copy.deepcopy(graph))

    def run(self, inputs: Sequence[Tensor], modes: dict[str, bool] | None = None) -> Shapes | None:
        """The shapes that global inputs, on the meta device, lead to; None where torch cannot tell.

        `modes` says which modules are in training. Raises `PartitionError` with what torch refuses.
        """
        for name, module in self._module.named_modules():
            module.training = (modes or {}).get(name, module.training)
        recorder = _Recorder(self._module)
        try:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                y = recorder.run(*inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if isinstance(error, NotImplementedError) and "meta" in str(error).lower():
                return None  # some function of torch does not know how to do without numbers
            if "device" in str(error):
                return None  # the code names one
            shapes = ", ".join(f"{tuple(x.shape)}, {x.dtype}" for x in inputs)
            code = code_of(recorder.at) if recorder.at is not None else ""
            where = f"\n  in:  {code}" if code else ""
            raise PartitionError(
                f"{self.name} cannot take a global input of shape {shapes}: {str(error).strip()}{where}"
            ) from None
        for one, dim, other, its, name in self.checks:
            shapes_of = recorder.shapes[one], recorder.shapes[other]
            if shapes_of[0][dim] != shapes_of[1][its]:
                raise PartitionError(
                    f"{self.name}: {name} of tensors of shapes {shapes_of[0]} and {shapes_of[1]}, which broadcast along a cut "
                    "dim.\n  fix: expand them before."
                )
        return Shapes(recorder.shapes, [tuple(tensor.shape) for tensor in parts_of(y, Tensor)])

    def __deepcopy__(self, memo: dict) -> Rehearsal:
        return self


class _Recorder(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.shapes: dict[str, Shape] = {}
        self.at: torch.fx.Node | None = None
        """The node that is run."""

    def run_node(self, n: torch.fx.Node) -> Any:
        self.at = n
        value = super().run_node(n)
        if n.op == "get_attr" and isinstance(value, Tensor):
            value = value.to("meta")  # what the model's code has made of numbers, such as a range
        if isinstance(value, Tensor):
            self.shapes[n.name] = tuple(value.shape)
        return value


def without_numbers(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model on the meta device, made without copying a number; of a deferred model too."""
    memo: dict[int, Any] = {}
    plain = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    for tensor in [*model.parameters(), *model.buffers(), *plain]:
        twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    return copy.deepcopy(model, memo)


def parts_of(value: Any, kind: type[T]) -> list[T]:
    """All of one kind in what a model returns: one, or tuples, lists and dicts of them."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [part for each in value for part in parts_of(each, kind)]
    return [value] if isinstance(value, kind) else []
