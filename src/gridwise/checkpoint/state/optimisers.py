"""The parameters of optimisers by their names, and which of their state is split as they are.

The state of a parameter is stored under its name in its module; `reading/optimisers.py` puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ...errors import CheckpointMismatch
from ...grid import Layout
from ..format.values import DEEPEST
from .local_blocks import is_tensor
from .per_worker import PerWorker


def names_of_parameters(state: object) -> dict[int, str]:
    """Parameter (by `id`) -> name in its module, prefixed with the module's key if two modules share the name."""
    modules = list(_modules(state, "", 0))
    relative: dict[str, set[int]] = {}
    found: dict[int, tuple[str, str]] = {}
    for prefix, module in modules:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            relative.setdefault(name, set()).add(id(parameter))
            found.setdefault(id(parameter), (prefix, name))
    return {
        key: name if len(relative[name]) == 1 or not prefix else f"{prefix}.{name}"
        for key, (prefix, name) in found.items()
    }


def _modules(value: object, prefix: str, depth: int) -> Iterator[tuple[str, torch.nn.Module]]:
    if depth > DEEPEST:
        return
    if isinstance(value, torch.nn.Module):
        yield prefix, value
    elif isinstance(value, PerWorker):
        yield from _modules(value.value, prefix, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _modules(item, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _modules(item, f"{prefix}.{place}" if prefix else str(place), depth + 1)


def parameter_names(optimiser: torch.optim.Optimizer, names: Mapping[int, str], key: str) -> list[list[str]]:
    """The names of the parameters in each group: from the modules of the state, else those given to the optimiser."""
    result = []
    for group in optimiser.param_groups:
        given: Sequence[str | None] = group.get("param_names") or [None] * len(group["params"])
        found = [names.get(id(p), name) for p, name in zip(group["params"], given, strict=True)]
        if None in found:
            raise CheckpointMismatch(
                f"{key!r}: {found.count(None)} parameters of the {type(optimiser).__name__} belong to no module in the state, "
                "so they have no names, and their state would be stored under none.\n"
                "  fix: put the module into the same state, or build the optimiser from `module.named_parameters()`."
            )
        result.append([str(name) for name in found])
    flat = [name for group_names in result for name in group_names]
    twin = next((name for name in flat if flat.count(name) > 1), None) if len(set(flat)) < len(flat) else None
    if twin is not None:
        raise CheckpointMismatch(f"{key!r}: two parameters of the {type(optimiser).__name__} are called {twin!r}.")
    return result


def first_owner(layout: Layout) -> int:
    """The first worker that holds a part of a tensor: it writes what is the same on all of them."""
    return next((rank for rank, box in layout.blocks() if box.volume), layout.grid.ranks[0])


def lies_like(item: object, parameter: Tensor) -> bool:
    """Whether a tensor of an optimiser has one value per element of the parameter, and so is split as it is."""
    return is_tensor(item) and item.shape == parameter.shape


def block_of(optimiser: torch.optim.Optimizer, parameter: Tensor) -> Tensor:
    """What an optimiser has the state of: the parameter, or this worker's block of it (`gridwise.optim.cut_states`)."""
    find = getattr(optimiser, "block_of", None)
    return parameter if find is None else find(parameter)
