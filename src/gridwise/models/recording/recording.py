"""What a model does with inputs of one structure: a flat graph of ATen operators, with the sizes of the global tensors.

    placeholders   parameters, buffers, constants and inputs, each with its `ValueSource`; unused ones are left out
    nodes          call_function of an ATen operator above autograd (``conv2d.default``, ``batch_norm.default``), of
                   ``operator.getitem``, or of a switch: ``set_grad_enabled(mode)``, ``enter_autocast(...)`` and
                   ``exit_autocast(entered)`` of `torch_internals.switches`; these act on all nodes that follow
    node.meta      "val"            a fake tensor of the global shape, or a tuple or list of them
                   "tensor_meta"    torch's; its `requires_grad` is that of the model's tensor, while "val" is detached
                   "module"         the dotted name of the module whose code made the node
                   "line"           where in the user's code: "file.py:12, in forward:  y = self.conv(x)"
                   "region"         the number of the innermost `GraphRegion` around the node; absent outside regions
    output         a flat tuple of tensors; `Recording.outputs` puts them into the containers that the model returns

Writes to buffers are operators that change a placeholder (``batch_norm``, ``add_``), as in the model's code. An output
may be a placeholder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ...torch_internals.operators import OpOverload, schema_of
from ...torch_internals.tensors import storage_key
from .containers import Tree, unflatten


@dataclass(frozen=True)
class ValueSource:
    """Where the value of a placeholder comes from."""

    kind: Literal["parameter", "buffer", "constant", "input"]
    name: str
    """The dotted name of a parameter or buffer, a key of `Recording.constants`, or an input's position, as in "0"."""


@dataclass(frozen=True)
class GraphRegion:
    """Nodes that run as one call: those that `torch.utils.checkpoint` recomputes, or an autograd Function.

    The nodes of a region and of the regions within it are consecutive in the graph.
    """

    number: int
    kind: Literal["checkpoint", "function"]
    within: int | None = None
    """The region around this one."""
    keeps_random_state: bool = True
    """For a checkpoint: whether it recomputes with the same random numbers."""
    backward: Backward | None = None
    """For a function: its backward."""


@dataclass(frozen=True)
class Backward:
    """The recorded backward of a `torch.autograd.Function`: ``module(*saved, *gradients of the outputs)``.

    It returns the gradients of the inputs that need one.
    """

    function: type[torch.autograd.Function]
    module: torch.fx.GraphModule
    saved: tuple[str, ...]
    """The nodes of the recording whose values it needs."""
    outputs: tuple[str, ...]
    """The nodes that are the function's outputs, in the order of the gradients."""
    inputs: tuple[str, ...]
    """The nodes whose gradients it returns, in the order of these."""


@dataclass
class Recording:
    """One recorded call of a model; the same on all workers, as compared by `digest`."""

    module: torch.fx.GraphModule
    sources: dict[str, ValueSource]
    """By the name of a placeholder, in the order of the placeholders."""
    constants: dict[str, Tensor]
    """Tensors that the model's code made from numbers, or found outside the model."""
    returned: Tree
    """The containers that the model returns; their tensors are the outputs of the graph."""
    digest: int
    reads: tuple[Tensor, ...] = ()
    """The buffers, and other tensors that the model does not change, whose numbers have decided what was recorded."""
    regions: dict[int, GraphRegion] = field(default_factory=dict)

    def outputs(self, tensors: Sequence[Any]) -> Any:
        """What the model returns, made from what the graph returns."""
        return unflatten(self.returned, tensors)

    @property
    def draws(self) -> bool:
        """Whether the call draws random numbers."""
        return any(map(draws, self.module.graph.nodes))


def tensors_in(value: object) -> list[Tensor]:
    """The tensors of a node's "val"."""
    if isinstance(value, Tensor):
        return [value]
    return [x for part in value for x in tensors_in(part)] if isinstance(value, list | tuple) else []


def memory_of(node: torch.fx.Node) -> int | None:
    """An identifier of the storage of a node's tensor; None if its value is not a tensor."""
    value = node.meta.get("val")
    return storage_key(value) if isinstance(value, Tensor) else None


def memories_of(node: torch.fx.Node) -> list[int]:
    """The identifiers of the storages of a node's tensors."""
    return list(map(storage_key, tensors_in(node.meta.get("val"))))


def arguments_of(node: torch.fx.Node, op: OpOverload) -> dict[str, Any]:
    """The arguments that a node passes to an operator, by name, in the schema's order; None where it passes none."""
    names = [argument.name for argument in schema_of(op).arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return {name: given.get(name) for name in names}


def erase(node: torch.fx.Node) -> None:
    """Remove a node that nobody uses."""
    node.graph.erase_node(node)
    node.meta.clear()  # otherwise its fake would seem to be kept by the model's code


def nodes_in(value: Any) -> list[torch.fx.Node]:
    """The nodes in an argument, or in several."""
    found: list[torch.fx.Node] = []
    torch.fx.map_arg(value, found.append)
    return found


def written_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose tensors an operator changes, according to its schema."""
    op = node.target
    if not isinstance(op, OpOverload) or not schema_of(op).is_mutable:
        return []
    given = arguments_of(node, op)
    return nodes_in(
        [given[a.name] for a in schema_of(op).arguments if a.alias_info is not None and a.alias_info.is_write]
    )


def draws(node: torch.fx.Node) -> bool:
    """Whether an operator draws random numbers; a dropout that is off does not."""
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = arguments_of(node, node.target)
    is_on = given.get("train", given.get("training"))
    shares = [given[key] for key in ("p", "dropout_p", "dropout") if isinstance(given.get(key), float | int)]
    return is_on is not False and (not shares or any(shares)) and not (node.target is _ATTENTION and not shares)


_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def where(node: torch.fx.Node) -> str:
    """An operator as named in error messages: operator, module, line."""
    name = str(node.target).removeprefix("aten.").removesuffix(".default")
    module, line = node.meta.get("module"), node.meta.get("line")
    return f"{name}{f' in {module}' if module else ''}{f', {line}' if line else ''}"
