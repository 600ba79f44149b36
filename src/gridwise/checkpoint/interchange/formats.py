"""Other formats: a single safetensors file in and out, files of `torch.save` and folders of torch.distributed in.

| format | recognised by | read with | pickle |
|---|---|---|---|
| Gridwise checkpoint | a folder with manifest.json | `load` | never |
| safetensors | a file whose first bytes are a safetensors header | safetensors | never |
| torch.save | any other file | `torch.load(weights_only=True)` | restricted by torch; all of it only with `trust=True` |
| torch.distributed.checkpoint | a folder with .metadata | torch, only with `trust=True` | yes, by design of that format |

Unpickling runs whatever code the file contains. `trust=True` says that you know who wrote it.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...comm.transports.solo import SoloTransport
from ...errors import CheckpointDamaged, CheckpointError, CheckpointNotFound
from ...partition import world
from .. import disk
from ..consensus import Consensus
from ..format.chunks import chunks_of
from ..format.data_file import Block, header_of
from ..format.manifest import CODES, ITEMSIZE, MANIFEST, Manifest
from ..format.manifest_parser import read_manifest, strict_json
from ..format.values import check_keys, decoded, joined
from ..reading import available_memory
from ..reading.loading import load
from ..reading.reader import Progress, Reader
from ..reading.wanted_chunks import Want, units_of_all
from ..state.flatten import Flat, flatten
from ..state.key_tree import is_length
from ..state.local_blocks import LocalBlock, LocalTensor
from ..writing.saving import save_flat

EXTRA = "gridwise"
"""The entry of a safetensors file's metadata that keeps what has no place among its tensors."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    trust: bool = False,
    prefix: str = "",
    progress: Progress | None = None,
) -> None:
    """Convert any known format to a Gridwise checkpoint, or, if `target` ends in .safetensors, to one such file.

    Parameters
    ----------
    trust : allow formats that can only be read by unpickling, which runs code that the file contains
    prefix : of a Gridwise checkpoint, export only what lies below this key ("model"), without the key in the names
    progress : called with the number of bytes that were just written

    Examples
    --------
    >>> checkpoint.convert("run/step-100", "model.safetensors", prefix="model")
    """
    origin, goal = Path(source), Path(target)
    if goal.suffix == ".safetensors":
        if is_checkpoint(origin):
            _export(origin, goal, prefix, progress)
        else:
            _write_safetensors(goal, _read_foreign(origin, trust), progress)
        return
    if is_checkpoint(origin):
        raise CheckpointError(
            f"{origin} is a Gridwise checkpoint already, and {goal} is no .safetensors file.\n"
            "  fix: copy the folder with cp -r, or name a target that ends in .safetensors."
        )
    flat = _read_foreign(origin, trust)
    save_flat(Consensus(world(SoloTransport()), "saving", goal), goal, lambda: flat)


def read(source: str | os.PathLike[str], *, trust: bool = False) -> dict[str, Any]:
    """All that a file or folder of any known format holds, as a nested dict of whole tensors and plain values.

    Parameters
    ----------
    source : a checkpoint, a safetensors file, a file of `torch.save`, a folder of torch.distributed.checkpoint
    trust : whether formats that can run code may be read

    Examples
    --------
    >>> sorted(checkpoint.read(path)['model'])
    ['bias', 'weight']
    """
    path = Path(source)
    if is_checkpoint(path):
        return load(path, P=world(SoloTransport()))
    if path.is_file() and _is_safetensors(path):
        with _safetensors(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return _unpickled(path, trust)


def is_checkpoint(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _is_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size - 8


def _read_foreign(path: Path, trust: bool) -> Flat:
    if path.is_file() and _is_safetensors(path):
        return _flat_of_safetensors(path)
    return flatten(_unpickled(path, trust))


def _unpickled(path: Path, trust: bool) -> dict[str, Any]:
    if not path.exists():
        raise CheckpointNotFound(f"there is nothing at {path}.")
    if (path / ".metadata").is_file():
        return _of_torch_distributed(path, trust)
    if path.is_dir():
        raise CheckpointNotFound(f"{path} is a folder, but neither a Gridwise checkpoint nor one of torch.distributed.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=not trust)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, AttributeError) as error:
        fix = (
            "" if trust else "\n  fix: if you know who wrote it, `trust=True` unpickles it, which runs the code in it."
        )
        raise CheckpointError(
            f"{path} cannot be read as a file of torch.save: {str(error).splitlines()[0]}{fix}"
        ) from None
    return state if isinstance(state, dict) else {"value": state}


def _of_torch_distributed(path: Path, trust: bool) -> dict[str, Any]:
    if not trust:
        raise CheckpointError(
            f"{path} is a checkpoint of torch.distributed, which can only be read by unpickling: that runs code that the "
            "files contain.\n  fix: if you know who wrote it, `trust=True` (`--trust`)."
        )
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    try:
        _load_state_dict(state, FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    except CheckpointException as error:
        raise CheckpointError(f"{path} cannot be read by torch.distributed.checkpoint: {error}") from None
    return state


def _flat_of_safetensors(path: Path) -> Flat:
    flat = Flat()
    with _safetensors(path) as file:
        extra = _notes(file)
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(name)
            if extra is not None and name in extra["complex"]:
                tensor = torch.view_as_complex(tensor)
            key = joined("", name) if extra is None else name
            flat.tensors[key] = LocalTensor(
                CODES[tensor.dtype], tuple(tensor.shape), [LocalBlock(None, tensor, False)], everywhere=True
            )
        if extra is not None:
            flat.values, flat.per_worker, flat.workers = extra["values"], extra["per_worker"], extra["workers"]
            counts = dict.fromkeys(flat.per_worker, extra["workers"])
            for keys in (flat.tensors, flat.values, counts):
                check_keys(list(keys), counts)
    return flat


@contextmanager
def _safetensors(path: Path) -> Iterator[Any]:
    """The open file; one error for all that can be wrong with it."""
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, CheckpointDamaged, ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as a safetensors file: {error}") from None


def _notes(file: Any) -> dict[str, Any] | None:
    """What an export of ours notes in a file besides its tensors, checked; None if it is no export."""
    text = (file.metadata() or {}).get(EXTRA)
    if text is None:
        return None
    extra = {"values": {}, "per_worker": [], "workers": 1, "complex": []} | strict_json(text)
    names = extra["per_worker"], extra["complex"]
    if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in names):
        raise ValueError("its notes have no lists of names")
    if type(extra["workers"]) is not int or extra["workers"] < 1 or not isinstance(extra["values"], dict):
        raise ValueError("its notes are none that Gridwise writes")
    for value in extra["values"].values():
        if not is_length(value):
            decoded(value)
    return extra


# Export

Source = Callable[[], Tensor]


def _export(path: Path, target: Path, prefix: str, progress: Progress | None) -> None:
    manifest = read_manifest(path)
    below = f"{prefix}/" if prefix else ""
    keys = [key for key in manifest.tensors if key.startswith(below)]
    if not keys:
        raise CheckpointNotFound(
            f"{path} has no tensors below {prefix!r}: it has {', '.join(list(manifest.tensors)[:8])}."
        )
    values = {key[len(below) :]: value for key, value in manifest.values.items() if key.startswith(below)}
    extra = {
        "values": values,
        "per_worker": [key[len(below) :] for key in manifest.per_worker if key.startswith(below)],
        "workers": manifest.workers,
        "complex": [key[len(below) :] for key in keys if manifest.tensors[key].code == "C128"],
    }
    blocks = [
        Block(key[len(below) :], stored.code, None, stored.shape, torch.empty(0, device="cpu"), 0, stored.nbytes)
        for key in keys
        for stored in [manifest.tensors[key]]
    ]
    sources = [partial(_tensor, path, manifest, key) for key in keys]
    _write_file(target, list(zip(blocks, sources, strict=True)), extra, progress)


def _tensor(path: Path, manifest: Manifest, key: str) -> Tensor:
    stored = manifest.tensors[key]
    available_memory.check_new(stored.nbytes)
    target = torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
    with Reader(path, manifest, units_of_all([Want(key, stored, target, None, fresh=True)], [])) as reader:
        reader.check()
    return target


def _write_safetensors(target: Path, flat: Flat, progress: Progress | None) -> None:
    pairs: list[tuple[Block, Source]] = []
    for key, x in (*flat.tensors.items(), *flat.own_tensors.items()):
        data = x.parts[0].data
        pairs.append((Block(key, x.code, None, x.shape, data, 0, data.nbytes), data.detach))
    extra = {
        "values": {**flat.values, **flat.own_values},
        "per_worker": flat.per_worker,
        "workers": flat.workers or 1,
        "complex": [block.key for block, _ in pairs if block.code == "C128"],
    }
    _write_file(target, pairs, extra, progress)


def _write_file(
    target: Path, pairs: list[tuple[Block, Source]], extra: dict[str, Any], progress: Progress | None
) -> None:
    """One safetensors file, tensor by tensor, put into place when it is whole."""
    pairs = sorted(pairs, key=lambda pair: -ITEMSIZE[pair[0].code])
    metadata = {"format": "pt", EXTRA: json.dumps(extra)}
    draft = target.with_name(target.name + ".tmp")
    disk.remove(draft)
    fd = disk.create(draft)
    try:
        disk.write(fd, [memoryview(header_of([block for block, _ in pairs], metadata, pack_from=None))])
        for _, source in pairs:
            for chunk in chunks_of(source()):
                disk.write(fd, [chunk])
                if progress is not None:
                    progress(len(chunk))
        disk.sync(fd)
    except BaseException:
        disk.remove(draft)
        raise
    finally:
        os.close(fd)
    disk.rename(draft, target)
    disk.sync_folder(target.parent)
