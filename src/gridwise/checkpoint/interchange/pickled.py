"""Files that are read by unpickling: those of `torch.save`, and the `.bin` files of older Hugging Face folders."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointDamaged, CheckpointError, CheckpointNotFound
from ..format.manifest_parser import MALFORMED, damaged
from ..format.safetensors_headers import weight_map_of
from .torch_distributed import read_torch_distributed

BIN, BIN_INDEX = ".bin", ".bin.index.json"

UNREADABLE = (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError)


def unpickled(path: Path, trust: bool) -> dict[str, Any]:
    """The state in a file of `torch.save`, in a folder of torch.distributed, or in a folder of `.bin` files."""
    if not path.exists():
        raise CheckpointNotFound(f"there is nothing at {path}.")
    if (path / ".metadata").is_file():
        return read_torch_distributed(path, trust)
    if path.is_dir():
        return _of_bin_folder(path, trust)
    return _of_file(path, trust)


def _of_file(path: Path, trust: bool) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=not trust)
    except UNREADABLE as error:
        fix = (
            "" if trust else "\n  fix: if you know who wrote it, `trust=True` unpickles it, which runs the code in it."
        )
        first_line = (str(error).splitlines() or [repr(error)])[0]
        raise CheckpointError(f"{path} cannot be read as a file of torch.save: {first_line}{fix}") from None
    return state if isinstance(state, dict) else {"value": state}


def _of_bin_folder(path: Path, trust: bool) -> dict[str, Tensor]:
    """The tensors of `pytorch_model.bin`, or of the shards that its index names."""
    names = sorted(item.name for item in path.iterdir() if item.name.endswith((BIN, BIN_INDEX)))
    if not names:
        raise CheckpointNotFound(
            f"{path} is a folder, but neither a Gridwise checkpoint, nor one of torch.distributed, nor one of Hugging Face."
        )
    if not trust:
        raise CheckpointError(
            f"{path} has {', '.join(names[:4])}, which can only be read by unpickling, and no safetensors files.",
            fix="the model's safetensors files, if there are any; if you know who wrote these, `trust=True`.",
        )
    indices = [name for name in names if name.endswith(BIN_INDEX)]
    if len(indices or names) > 1:
        raise CheckpointNotFound(f"{path} has several models: {', '.join(indices or names)}.")
    try:
        weight_map = weight_map_of(path / indices[0], BIN) if indices else None
    except MALFORMED as error:
        raise damaged(f"{path / indices[0]} cannot be read as an index", error) from None
    shards = sorted(set(weight_map.values())) if weight_map is not None else names
    state: dict[str, Tensor] = {}
    for name in shards:
        tensors = _of_file(path / name, trust=False)  # tensors need no code, even from a trusted source
        expected = tensors.keys() if weight_map is None else {key for key, file in weight_map.items() if file == name}
        if tensors.keys() != expected or not all(isinstance(x, Tensor) for x in tensors.values()):
            raise CheckpointDamaged(f"{path / name} does not hold just the tensors that the index puts there.")
        state |= tensors
    return state
