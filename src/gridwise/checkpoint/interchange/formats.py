"""Other formats: what is read and written, and how each is recognised.

| format | recognised by | read with | pickle |
|---|---|---|---|
| Gridwise checkpoint | a folder with manifest.json | `load` | never |
| safetensors | a file whose first bytes are a safetensors header | `load` | never |
| Hugging Face | a folder with safetensors files, and an index if there are several | `load` | never |
| torch.save | any other file | `torch.load(weights_only=True)` | restricted by torch; in full only with `trust=True` |
| Hugging Face, older | a folder with .bin files | the same, but only with `trust=True` | restricted by torch |
| torch.distributed.checkpoint | a folder with .metadata | torch, only with `trust=True` | yes, by design of that format |

Unpickling runs whatever code the file contains. `trust=True` means that you know who wrote it.
"""

from __future__ import annotations

import os
from typing import Any

from ...comm.transports.solo import SoloTransport
from ...errors import CheckpointError, CheckpointMismatch
from ...partition import world
from ..consensus import Consensus
from ..format.manifest import MANIFEST
from ..format.safetensors_headers import SUFFIX, is_safetensors
from ..reading.loading import load
from ..reading.reader import Progress
from ..store_path import Place, StorePath, place_of, reject_stores
from ..writing.saving import save_flat
from .huggingface import SHARD_SIZE, write_huggingface
from .pickled import unpickled
from .portable import Portable, portable_of_files, portable_of_state
from .safetensors_file import write_safetensors
from .torch_distributed import write_torch_distributed

FORMATS = ("gridwise", "safetensors", "huggingface", "torch.distributed")


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    trust: bool = False,
    prefix: str = "",
    shard_size: int = SHARD_SIZE,
    progress: Progress | None = None,
) -> None:
    """Convert between formats, in one process; without pickle on either side, it holds one tensor at a time.

    Parameters
    ----------
    to : 'gridwise', a checkpoint; 'safetensors', one file; 'huggingface', a folder of such files with an index;
        'torch.distributed', a folder of torch.distributed.checkpoint. Default: one file if `target` ends in
        .safetensors, else a checkpoint.
    trust : allow formats that can only be read by unpickling, which runs code that the file contains
    prefix : convert only what lies below this key ("model"), without the key in the names
    shard_size : most bytes of a file in a Hugging Face folder, unless a single tensor is larger
    progress : called with the number of bytes that were just written

    Examples
    --------
    >>> checkpoint.convert("run/step-100", "model.safetensors", prefix="model")
    >>> checkpoint.convert("run/step-100", "for_the_hub", to="huggingface", prefix="model")
    """
    origin, goal = place_of(source), place_of(target)
    form = to or ("safetensors" if goal.suffix == SUFFIX else "gridwise")
    if form not in FORMATS:
        raise CheckpointMismatch(f"`to` (={to!r}) must be one of {', '.join(map(repr, FORMATS))}.")
    if form == "torch.distributed":
        write_torch_distributed(
            reject_stores(goal, "these are written"), _below(read(origin, trust=trust), prefix, origin)
        )
        return
    if form == "gridwise" and is_checkpoint(origin):
        raise CheckpointError(
            f"{origin} is a Gridwise checkpoint already, and {goal} is no .safetensors file.",
            fix="copy the folder with cp -r; or name a target that ends in .safetensors, or another format (`to`).",
        )
    portable = portable_of(origin, trust).below(prefix, origin)
    if form == "safetensors":
        write_safetensors(reject_stores(goal, "these are written"), portable, progress)
    elif form == "huggingface":
        write_huggingface(reject_stores(goal, "these are written"), portable, shard_size, progress)
    else:
        flat = portable.to_flat()
        save_flat(Consensus(world(SoloTransport()), "saving", goal), goal, lambda: flat)


def read(source: str | os.PathLike[str], *, trust: bool = False) -> dict[str, Any]:
    """Everything in a file or folder of any known format, as a nested dict of whole tensors and plain values.

    Parameters
    ----------
    source : a checkpoint, a safetensors file, a file of `torch.save`, a folder of torch.distributed.checkpoint
    trust : whether formats that can run code may be read

    Examples
    --------
    >>> sorted(checkpoint.read(path)['model'])
    ['bias', 'weight']
    """
    path = place_of(source)
    if isinstance(path, StorePath) or is_checkpoint(path) or is_safetensors(path):
        return load(path, P=world(SoloTransport()))
    return unpickled(path, trust)


def is_checkpoint(path: Place) -> bool:
    return (path / MANIFEST).is_file()


def portable_of(path: Place, trust: bool) -> Portable:
    """The contents of a file or folder of any known format."""
    if isinstance(path, StorePath) or is_checkpoint(path) or is_safetensors(path):
        return portable_of_files(path)
    return portable_of_state(unpickled(path, trust))


def _below(state: dict[str, Any], prefix: str, source: Place) -> dict[str, Any]:
    for name in prefix.split("/") if prefix else ():
        if not isinstance(state.get(name), dict):
            raise CheckpointMismatch(f"{source} has nothing below {prefix!r}: it has {', '.join(map(str, state))}.")
        state = state[name]
    return state
