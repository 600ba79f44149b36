"""What a model does with inputs of one structure: a flat graph of ATen operators, with the sizes of the global tensors.

    placeholders   parameters, buffers, constants and inputs, each with its `Source`
    nodes          call_function of an ATen operator, `operator.getitem`, a higher-order operator over a sub-graph
                   (``wrap_with_set_grad_enabled``, ``wrap_with_autocast``: a get_attr of a GraphModule)
    node.meta      "val": a fake tensor of the global shape, or a tuple of them; "nn_module_stack"; "stack_trace";
                   "region": the number of the innermost `Region` that the node belongs to, where it belongs to one
    the output     a flat tuple of tensors: what the user sees (`Recording.outputs` puts it together)

Writes to buffers are operators that mutate a placeholder (``batch_norm``, ``add_``), as the model made them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Source:
    """Where the value of a placeholder comes from."""

    kind: Literal["parameter", "buffer", "constant", "input"]
    name: str
    """The dotted name of a parameter or buffer; a key of `Recording.constants`; the place of an input, as in "0"."""


@dataclass(frozen=True)
class Region:
    """Nodes that are to run as one call: what `torch.utils.checkpoint` recomputes, or what a Function differentiates itself.

    The nodes of a region follow one another in the graph. `inputs` and `outputs` name the nodes that cross its border.
    """

    number: int
    kind: Literal["checkpoint", "function"]
    within: int | None = None
    """The region around this one."""
    function: type[torch.autograd.Function] | None = None
    arguments: tuple[Any, ...] = ()
    """Those of `function.apply`: a node's name in a `Tensorlike` for each tensor, all others as they were given."""


@dataclass
class Recording:
    """One recorded call of a model; the same on all workers, which `digest` says."""

    module: torch.fx.GraphModule
    sources: dict[str, Source]
    """By the name of a placeholder, in the order of the placeholders."""
    constants: dict[str, Tensor]
    """Tensors that the model's code has made of numbers, or held without registering them."""
    outputs: Callable[[list[Any]], Any]
    """From the flat list of what the graph returns to what the model returns."""
    digest: int
    regions: dict[int, Region] = field(default_factory=dict)
