"""Checkpoints of the Trainer: folders in the format of `gridwise.checkpoint`, which load on any grid.

What Lightning collects is a nested dict with whole tensors, the same on all workers. Tensors are checked to be so; other
values are those of the first worker, since timers differ.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import checkpoint as files
from ...comm.agreement import check_same_call
from ...errors import UnsupportedError
from ...nn.parameters.blocks import is_cut
from ...partition import Partition


def save(path: str | os.PathLike[str], state: Mapping[str, Any], P: Partition) -> None:
    """Write what Lightning has collected; all workers call it."""
    tensors: list[Tensor] = []
    values = _plain(state, tensors)
    files.save(path, _with_tensors(from_first(values, P, "the values of a checkpoint"), tensors), P)


def load(path: str | os.PathLike[str], P: Partition) -> dict[str, Any]:
    """What was saved, with whole tensors on every worker."""
    return files.load(path, P=P)


def from_first(value: Any, P: Partition, what: str, source: int = 0) -> Any:
    """The value of worker `source` of the partition, on all of its workers."""
    if P.size == 1:
        return value
    check_same_call(P.transport, P.team, what, what)
    mine = pickle.dumps(value) if P.rank == source else b""
    return pickle.loads(P.transport.gather_bytes(mine, P.team, what)[P.team.index(P.ranks[source])])


def refuse_cut(module: torch.nn.Module) -> None:
    """Refuse to save parameters that lie in blocks, whose optimiser would have to be saved by names."""
    name = next((name for name, parameter in module.named_parameters() if is_cut(parameter)), None)
    if name is not None:
        raise UnsupportedError(
            f"GridStrategy: `{name}` lies in blocks (parameters='cut'), and the Trainer saves optimisers by numbers.",
            fix="Trainer(enable_checkpointing=False), and in a callback "
            "gridwise.checkpoint.save(path, {'model': module, 'optim': optimizer}).",
        )


class _Place(int):
    """The place of a tensor in a list."""


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """Dicts, lists and tuples in place of their subclasses, numbers in place of NumPy's, places in place of tensors."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return _Place(len(tensors) - 1)
    if isinstance(value, Mapping):
        return {key: _plain(part, tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_plain(part, tensors) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _with_tensors(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value]
    if isinstance(value, dict):
        return {key: _with_tensors(part, tensors) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(part, tensors) for part in value)
    return value
