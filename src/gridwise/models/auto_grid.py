"""`distribute(model, "auto", example=...)`: the grid of all workers that the planner ranks first.

The planner is built on `distribute`, so it registers itself here. The first worker asks it and tells the others: the
machines that they run on may have been measured differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import GridwiseError, PartitionError
from ..partition import CartesianPartition, world

Planner = Callable[[torch.nn.Module, tuple[int, ...], torch.dtype, int, str], tuple[int, ...]]
planners: list[Planner] = []
"""From a model, the shape and dtype of its input, a number of workers and `parameters`: a grid."""


def auto_grid(model: object, example: object, parameters: str) -> CartesianPartition:
    """The grid for a model with one input, `example` or its shape, on all workers."""
    P_world, shape = world(), _shape_of(example)
    if not isinstance(model, torch.nn.Module) or not shape:
        raise PartitionError(
            f"distribute: `P_x` (='auto') needs a model, not a function, and `example` (={_spelt(example)}), its one input "
            "or the shape of it.",
            fix='distribute(model, "auto", example=(4, 3, 512, 512)); functions can take the `P_x` of its result.',
        )
    transport = P_world.transport
    said = b""
    if transport.rank == 0:
        try:
            said = json.dumps(planners[0](model, shape, _dtype_of(model, example), P_world.size, parameters)).encode()
        except GridwiseError as error:
            said = json.dumps(str(error)).encode()
    found = json.loads(transport.gather_bytes(said, P_world.team, "the choice of a grid")[0])
    if isinstance(found, str):
        raise PartitionError(f"distribute: `P_x` (='auto'): {found}")
    return P_world.grid(*found)


def _shape_of(example: object) -> tuple[int, ...]:
    if isinstance(example, Tensor):
        return tuple(example.shape)
    is_shape = isinstance(example, tuple | list) and all(type(n) is int for n in example)
    return tuple(example) if is_shape else ()  # type: ignore[arg-type]


def _dtype_of(model: torch.nn.Module, example: object) -> torch.dtype:
    if isinstance(example, Tensor):
        return example.dtype
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())


def _spelt(example: object) -> str:
    return "none" if example is None else type(example).__name__
