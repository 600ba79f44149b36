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

    def run(self, inputs: Sequence[Tensor], model: torch.nn.Module | None = None) -> Shapes | None:
        """The shapes that global inputs, on the meta device, lead to; None where torch cannot tell.

        `model` says which modules are in training, and the dtypes of its parameters now; None: as at the conversion. Raises
        `PartitionError` with what torch refuses, and where dims have to be equal and are not, or nobody can tell.
        """
        by_autocast = model is not None and any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
        if model is not None:
            self._follow(model, by_autocast)
        recorder = _Recorder(self._module, by_autocast)
        try:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                y = recorder.run(*(_as_float(x) if by_autocast else x for x in inputs))
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            code = code_of(recorder.at) if recorder.at is not None else ""
            where = f"\n  in:  {code}" if code else ""
            needs_numbers = "meta tensor" in str(error).lower() or (
                isinstance(error, NotImplementedError) and "meta" in str(error).lower()
            )
            names_a_device = "device" in str(error)
            if needs_numbers or names_a_device:
                self._refuse_unchecked(where)
                return None
            shapes = ", ".join(f"{tuple(x.shape)}, {x.dtype}" for x in inputs)
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

    def _follow(self, model: torch.nn.Module, by_autocast: bool) -> None:
        """Take over the modes and dtypes of the converted model: both may be others since the conversion."""
        modes = {name: module.training for name, module in model.named_modules()}
        for name, module in self._module.named_modules():
            module.training = modes.get(name, module.training)
        live: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        live |= model.named_buffers(remove_duplicate=False)
        for name, own in (*self._module.named_parameters(), *self._module.named_buffers()):
            made_of_numbers = f"_constants.{name.replace('.', '_')}"
            dtype = live.get(name, live.get(made_of_numbers, own)).dtype
            dtype = torch.float32 if by_autocast and dtype.is_floating_point else dtype
            if own.dtype != dtype:
                own.data = own.data.to(dtype)

    def _refuse_unchecked(self, where: str) -> None:
        if self.checks:
            names = ", ".join(sorted({check[-1] for check in self.checks}))
            raise PartitionError(
                f"{self.name}: torch cannot run the model without numbers, so nobody can tell whether the tensors of {names} "
                f"broadcast along a cut dim.{where}\n  fix: keep that part of the model sequential."
            )

    def __deepcopy__(self, memo: dict) -> Rehearsal:
        return self


class _Recorder(torch.fx.Interpreter):
    """Runs a graph on the meta device, whatever device its code names.

    If `by_autocast`, all that is floating is of one dtype: autocast decides about dtypes, and knows nothing of that device.
    """

    def __init__(self, module: torch.fx.GraphModule, by_autocast: bool) -> None:
        super().__init__(module)
        self.by_autocast = by_autocast
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
            value = _as_float(value) if self.by_autocast else value
        return value

    def call_function(self, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if target is torch.arange or "device" in kwargs:
            kwargs = {**kwargs, "device": "meta"}
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if "device" in kwargs:
            kwargs = {**kwargs, "device": "meta"}
        if target == "to":
            args = tuple("meta" if isinstance(arg, str | torch.device) else arg for arg in args)
        return super().call_method(target, args, kwargs)


def _as_float(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


def without_numbers(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model on the meta device, made without copying a number; of a deferred model too."""
    memo: dict[int, Any] = {}
    plain = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    for tensor in [*model.parameters(), *model.buffers(), *plain]:
        twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    bare = copy.deepcopy(model, memo)
    for module in bare.modules():
        if isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.momentum is None:
            module.momentum = 0.0  # torch would ask for the number of batches; shapes do not depend on it
    return bare


def parts_of(value: Any, kind: type[T]) -> list[T]:
    """All of one kind in what a model returns: one, or tuples, lists and dicts of them."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [part for each in value for part in parts_of(each, kind)]
    return [value] if isinstance(value, kind) else []
