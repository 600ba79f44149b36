"""Read and write folders of torch.distributed.checkpoint, with optimiser states in the form of `get_state_dict`.

    torch      {"state": {"conv.weight": {"exp_avg": ...}}, "param_groups": [{"params": ["conv.weight"], "lr": 0.1}]}
    flattened  {"state.conv.weight.exp_avg": ..., "param_groups.conv.weight.lr": 0.1}
    Gridwise   {"kind": "Adam", "groups": {0: {"params": ["conv.weight"], "lr": 0.1}}, "state": {"conv.weight": {...}}}

All three name parameters by their path in the model, so they are the same state in different forms. Torch does not
store the class of an optimiser; a load into a different one is then noticed by the names of its options.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ...torch_internals.distributed import read_whole

OPTIMISER = {"state", "param_groups"}


def read_torch_distributed(path: Path, trust: bool) -> dict[str, Any]:
    """The whole state in a folder of torch.distributed.checkpoint, with optimisers in Gridwise's form."""
    if not trust:
        raise CheckpointError(
            f"{path} is a checkpoint of torch.distributed, which can only be read by unpickling: that runs code that the "
            "files contain.\n  fix: if you know who wrote it, `trust=True` (`--trust`)."
        )
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        state = read_whole(path)
    except CheckpointException as error:
        raise CheckpointError(f"{path} cannot be read by torch.distributed.checkpoint: {error}") from None
    return from_torch(state)


def write_torch_distributed(path: Path, state: dict[str, Any]) -> None:
    """Write the state as a folder that `torch.distributed.checkpoint.load` reads on any number of ranks."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path} is there already.\n  fix: a folder that does not exist, or is empty.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save(to_torch(state), storage_writer=FileSystemWriter(path, sync_files=True), no_dist=True)


def from_torch(state: Any) -> Any:
    """The same state, with its optimisers in Gridwise's form."""
    if not isinstance(state, dict):
        return state
    if state and all(isinstance(key, str) and key.startswith(("state.", "param_groups.")) for key in state):
        return _from_flattened(state)
    groups = state.get("param_groups")
    # Before its first step an optimiser has no state, and torch stores no empty dict.
    if state.keys() <= OPTIMISER and isinstance(groups, list) and all(map(_names_parameters, groups)):
        return {"groups": dict(enumerate(groups)), "state": state.get("state", {})}
    return {key: from_torch(item) for key, item in state.items()}


def _names_parameters(group: object) -> bool:
    names = group.get("params") if isinstance(group, dict) else None
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _from_flattened(state: dict[str, Any]) -> dict[str, Any]:
    """The same in Gridwise's form. Parameters with equal options become one group: this form does not store groups."""
    options: dict[str, dict[str, Any]] = {}
    states: dict[str, dict[str, Any]] = {}
    for key, item in state.items():
        kind, _, rest = key.partition(".")
        name, _, last = rest.rpartition(".")
        (states if kind == "state" else options).setdefault(name, {})[last] = item
    groups: list[dict[str, Any]] = []
    for name, group in options.items():
        same = next((known for known in groups if _options(known) == group), None)
        if same is None:
            groups.append({"params": [name], **group})
        else:
            same["params"].append(name)
    return {"groups": dict(enumerate(groups)), "state": states}


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in group.items() if name != "params"}


def to_torch(state: Any) -> Any:
    """The same state, with its optimisers in the form that torch's `set_state_dict` takes."""
    if not isinstance(state, dict):
        return state
    groups = state.get("groups")
    if (
        state.keys() <= {"kind", "groups", "state"}
        and isinstance(groups, dict)
        and all(map(_names_parameters, groups.values()))
    ):
        return {"state": state.get("state", {}), "param_groups": [groups[place] for place in sorted(groups)]}
    return {key: to_torch(item) for key, item in state.items()}
