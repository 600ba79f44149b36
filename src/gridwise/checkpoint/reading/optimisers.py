"""Plan how a checkpoint fills optimisers: the options of their groups, and the state of each parameter, by its name.

State with the parameter's shape (a momentum, say) is split as the parameter is; the rest is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointMismatch
from ..format.manifest import StoredTensor
from ..format.values import joined
from ..state.local_blocks import LocalTensor, is_deferred, is_tensor, layout_of, local_tensor
from ..state.optimisers import block_of, parameter_names
from .load_plan import LoadPlanner, listed, name_of

SCHEDULED = {"initial_lr", "swa_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"}
"""Options that torch's schedulers add to groups."""


def plan_optimiser(load: LoadPlanner, key: str, optimiser: torch.optim.Optimizer) -> None:
    """Add to the plan what fills an optimiser that stands under `key`."""
    names = parameter_names(optimiser, load.names, key or "into")
    _check_kind(load, key, optimiser)
    load.used.add(joined(key, "kind"))
    saved = load.below(joined(key, "groups"))
    if saved is None or saved.kind is not dict:
        raise load.missing(joined(key, "groups"))
    if len(saved.children) != len(names):
        raise CheckpointMismatch(
            f"{key!r}: the {type(optimiser).__name__} has {len(names)} parameter groups, {len(saved.children)} were saved."
        )
    groups = [joined(key, "groups", place, "params") for place in range(len(names))]
    were_saved = {name for at in groups for name in load.manifest.values.get(at) or ()}
    for place, (group, group_names) in enumerate(zip(optimiser.param_groups, names, strict=True)):
        options = load.everything(joined(key, "groups", place))
        if not isinstance(options, dict):
            raise load.missing(joined(key, "groups", place, "params"))
        if options.get("params") != group_names and load.strict:
            first, second = set(group_names), set(options.get("params") or ())
            raise CheckpointMismatch(
                f"{key!r}: group {place} of the {type(optimiser).__name__} has other parameters than were saved.",
                [
                    f"only in `into`: {listed(sorted(first - second))}",
                    f"only saved: {listed(sorted(second - first))}",
                ],
                "build the optimiser with the same groups, parameters in the same order.",
            )
        del options["params"]
        _check_options(key, optimiser, options, group)
        load.later(group.update, options)
        for name, parameter in zip(group_names, group["params"], strict=True):
            if name not in were_saved:  # with strict=False its state stays as it is
                load.missing_names.append(joined(key, "state", name))
                continue
            now, block = optimiser.state.get(parameter, {}), block_of(optimiser, parameter)
            state = _state_of(load, joined(key, "state", name), block, now, group)
            load.plan.finish.append(partial(_set_state, optimiser, parameter, state))


def _check_kind(load: LoadPlanner, key: str, optimiser: torch.optim.Optimizer) -> None:
    saved, here = load.manifest.values.get(joined(key, "kind")), type(optimiser).__name__
    if saved is not None and saved != here:
        raise CheckpointMismatch(
            f"{key!r}: the saved state is that of the optimiser {saved!s:.100}, and {here} in `into` cannot use it.\n"
            f"  fix: build {saved!s:.100}; or load without it, and start {here} anew."
        )


def _check_options(key: str, optimiser: torch.optim.Optimizer, saved: dict[Any, Any], group: dict[str, Any]) -> None:
    """Raise if the options are those of another kind of optimiser: each side has some that the other lacks.

    If only one side has extra options, that is allowed: versions of torch add some, and so do schedulers.
    """
    missing = sorted(optimiser.defaults.keys() - saved.keys())
    unknown = sorted(map(str, saved.keys() - optimiser.defaults.keys() - group.keys() - SCHEDULED))
    if missing and unknown:
        raise CheckpointMismatch(
            f"{key!r}: the saved state has options that {type(optimiser).__name__} does not have.",
            [f"only in `into`: {listed(missing)}", f"only saved: {listed(unknown)}"],
            "build the optimiser that was saved.",
        )


def _state_of(
    load: LoadPlanner, key: str, parameter: Tensor, now: Mapping[Any, Any], group: dict[str, Any]
) -> dict[Any, Any]:
    """The state of one parameter: tensors of its shape are split as it is, the rest is whole."""
    found = load.below(key)
    if found is None:
        return {}
    if is_deferred(parameter):
        raise CheckpointMismatch(
            f"{key!r}: the parameter of this optimiser is deferred, loading puts a real one into its module.\n"
            "  fix: load the model first, then build the optimiser and load it."
        )
    share = local_tensor(parameter, key, load.rank)
    state: dict[Any, Any] = {}
    for part_of_key, child in found.children.items():
        name = name_of(part_of_key, key)
        load.used.add(child.key)
        stored = load.manifest.tensors.get(child.key)
        if stored is not None and stored.shape == share.shape:
            state[name] = _like_parameter(load, child.key, stored, parameter, share, now.get(name))
        else:
            value = load.built(child)
            state[name] = value
            if isinstance(value, Tensor) and (group.get("capturable") or group.get("fused")):
                load.plan.finish.append(partial(_move, state, name, parameter.device))
    return state


def _like_parameter(
    load: LoadPlanner, key: str, stored: StoredTensor, parameter: Tensor, share: LocalTensor, before: object
) -> Tensor:
    """Memory, split as the parameter is, for the block of a stored tensor; `before` itself if it fits."""
    target, usable = before, is_tensor(before)
    if not is_tensor(target) or target.shape != parameter.shape or target.dtype != stored.dtype:
        target, usable = torch.empty_like(parameter, dtype=stored.dtype, requires_grad=False), False
    # The state of a split parameter is a plain tensor, that of a DTensor is a DTensor.
    parts = share.parts if layout_of(parameter) is not None else local_tensor(target, key, load.rank).parts
    for part in parts:
        data = target.detach() if layout_of(parameter) is not None else part.data
        load.want(key, stored, data, part.box, fresh=not usable)
    return target


def _move(state: dict[Any, Any], name: str | int, device: torch.device) -> None:
    state[name] = state[name].to(device)


def _set_state(optimiser: torch.optim.Optimizer, parameter: Tensor, state: dict[Any, Any]) -> None:
    if not state:
        optimiser.state.pop(parameter, None)
        return
    optimiser.state[parameter] = state
