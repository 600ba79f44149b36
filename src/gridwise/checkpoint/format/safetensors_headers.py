"""Safetensors files written by any program, single or as shards in a folder, read as a manifest.

    model.safetensors                        one file
    folder/model.safetensors                 a folder with one file
    folder/model.safetensors.index.json      {"weight_map": {"conv.weight": "model-00001-of-00002.safetensors", ...}}

    8 bytes    length of the header, little endian
    header     JSON: name -> dtype, shape, data_offsets; "__metadata__"
    data       tensor after tensor, without gaps

Nothing in them is trusted. A header must fit into its file and have at most 100 MB; the sizes of its tensors must match
their dtypes and shapes, and the tensors must follow one another from the header to the end of the file; an index may
name only files of its own folder, and each tensor once. These files have no checksums: it can be checked that they are
complete, not that their numbers are right. Links are followed, because the Hugging Face cache is made of them.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from ...errors import CheckpointDamaged, CheckpointError, CheckpointNotFound
from ...grid import Shape
from .chunks import DIGITS, checksum, number_of_chunks
from .manifest import ITEMSIZE, MANIFEST, Manifest, StoredBlock, StoredFile, StoredTensor
from .manifest_parser import MALFORMED, MOST_DIMS, check_ranges, damaged, strict_json
from .values import check_keys, decoded, is_length, joined

SUFFIX, INDEX = ".safetensors", ".safetensors.index.json"

LARGEST_FOREIGN_HEADER = 100_000_000
"""Most bytes of a header; the same limit as in the safetensors library."""

LARGEST_INDEX = 64 << 20

MOST_HEADERS = 256 << 20
"""Most bytes of the headers of all shards together."""

MAGIC = b"safetensors headers\n"

EXTRA = "gridwise"
"""The metadata entry in which our exports keep what is not a tensor."""

UNREADABLE = "cannot be read as safetensors"


def is_safetensors(path: Path) -> bool:
    """Whether `path` is a safetensors file, an index, or a folder with such files, and not a checkpoint."""
    if path.is_dir():
        if (path / MANIFEST).exists() or (path / ".metadata").exists():
            return False
        return any(item.name.endswith((SUFFIX, INDEX)) for item in path.iterdir())
    if not path.is_file():
        return False
    return path.name.endswith((SUFFIX, INDEX)) or _starts_like_one(path)


def _starts_like_one(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size - 8


# Reading: the same bytes on all workers, if they see the same files


def read_headers(path: Path) -> bytes:
    """The index, if there is one, and the headers of the files at `path`; only their sizes are checked."""
    where = _index_or_file(path)
    try:
        weight_map = weight_map_of(where, SUFFIX) if where.name.endswith(INDEX) else None
        names = [where.name] if weight_map is None else sorted(set(weight_map.values()))
        files: list[Any] = []
        left = MOST_HEADERS
        for name in names:
            size, header = _header(where.parent / name)
            left -= len(header)
            if left < 0:
                raise CheckpointDamaged(f"the headers of its shards have more than {MOST_HEADERS} bytes together.")
            files.append([name, size, header.decode()])
    except MALFORMED as error:
        raise damaged(f"{where} {UNREADABLE}", error) from None
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"{where}: the shard {error.filename} is missing.") from None
    except OSError as error:
        raise CheckpointError(f"{where} cannot be read: {error}.") from error
    return MAGIC + json.dumps([weight_map, files], separators=(",", ":")).encode()


def _index_or_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    names = sorted(item.name for item in path.iterdir())
    indices, files = ([name for name in names if name.endswith(end)] for end in (INDEX, SUFFIX))
    found = indices or [name for name in files if name == f"model{SUFFIX}"] or files
    if not found:
        raise CheckpointNotFound(f"{path} has no safetensors file.")
    if len(found) > 1:
        raise CheckpointNotFound(
            f"{path} has several safetensors files and no index: {', '.join(found[:8])}.",
            fix=f"name one of them, {path / found[0]}.",
        )
    return path / found[0]


def weight_map_of(path: Path, suffix: str) -> dict[str, str]:
    """Tensor -> file, from an index whose files must have this suffix."""
    if path.stat().st_size > LARGEST_INDEX:
        raise CheckpointDamaged(f"an index of {path.stat().st_size} bytes is too large.")
    tree = strict_json(path.read_bytes())
    weight_map = tree["weight_map"] if isinstance(tree, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointDamaged("its index has no `weight_map`.")
    for name in set(map(str, weight_map.values())):
        if not is_file_name(name, suffix):
            raise CheckpointDamaged(
                f"its index names the file {name[:100]!r}: only {suffix[1:]} files of the same folder are read."
            )
    return {name: str(file) for name, file in weight_map.items()}


def is_file_name(name: str, suffix: str = SUFFIX) -> bool:
    """Whether this is a plain file name with this suffix, which cannot lead out of its folder."""
    return name.endswith(suffix) and name.isprintable() and not name.startswith(".") and not set(name) & set("/\\\0:")


def _header(path: Path) -> tuple[int, bytes]:
    """The size of a file, and its header; a link is followed, and a pipe does not block."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointDamaged(f"{path.name} is no regular file.")
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(LARGEST_FOREIGN_HEADER, status.st_size - 8):
            raise CheckpointDamaged(
                f"{path.name} has {status.st_size} bytes and says that its header has {length}; at most "
                f"{LARGEST_FOREIGN_HEADER}, and no more than the file, can be right."
            )
        return status.st_size, file.read(length)


# Parsing


def from_headers(data: bytes, path: Path) -> Manifest:
    """The manifest of the files at `path`, from the bytes of `read_headers`; `CheckpointDamaged` if inconsistent."""
    where = _index_or_file(path)
    try:
        weight_map, files = strict_json(data[len(MAGIC) :])
        return _parsed(weight_map, files, where.parent)
    except MALFORMED as error:
        raise damaged(f"{where} {UNREADABLE}", error) from None


def _parsed(weight_map: dict[str, str] | None, headers: list[Any], folder: Path) -> Manifest:
    files: list[StoredFile] = []
    tensors: dict[str, StoredTensor] = {}
    notes: dict[str, Any] | None = None
    for number, (file, size, text) in enumerate(headers):
        raw = text.encode()
        start = 8 + len(raw)
        files.append(StoredFile(file, size, start, checksum(len(raw).to_bytes(8, "little") + raw)))
        entries = strict_json(text)
        if not isinstance(entries, dict):
            raise CheckpointDamaged(f"the header of {file} is no object.")
        metadata = _metadata(entries.pop("__metadata__", {}), file)
        if weight_map is None and EXTRA in metadata:
            notes = _notes(metadata[EXTRA])
        ranges = []
        for name, entry in entries.items():
            if weight_map is not None and weight_map.get(name) != file:
                raise CheckpointDamaged(f"{file} holds {name[:100]!r}, which the index does not expect there.")
            code, shape, first, last = _entry(name, entry)
            ranges.append((start + first, start + last, name))
            if notes is not None and name in notes["complex"]:
                code, shape = _as_complex(name, code, shape)
            sums = "0" * DIGITS * number_of_chunks(last - first)
            key = name if notes is not None else joined("", name)
            tensors[key] = StoredTensor(code, shape, (StoredBlock(number, start + first, sums, None),))
        check_ranges(file, ranges, start, size)
    if weight_map is not None:
        missing = sorted(name for name in weight_map if joined("", name) not in tensors)
        if missing:
            raise CheckpointDamaged(
                f"{missing[0][:100]!r} is not in {weight_map[missing[0]]}, where the index puts it."
            )
    extra = notes or {"values": {}, "per_worker": [], "workers": 1}
    per_worker = dict.fromkeys(extra["per_worker"], extra["workers"])
    if notes is not None:
        for keys in (tensors, extra["values"], per_worker):
            check_keys(list(keys), per_worker)
    return Manifest(
        "", extra["workers"], tuple(files), tensors, extra["values"], per_worker, "safetensors", "", files_of=folder
    )


def _metadata(metadata: object, file: str) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise CheckpointDamaged(f"the metadata of {file} are not texts by name.")
    return metadata


def _entry(name: str, entry: object) -> tuple[str, Shape, int, int]:
    """The dtype and the shape of a tensor, its first byte, and the one after its last."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointDamaged(f"{name[:100]!r} must have a dtype, a shape and data_offsets.")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in ITEMSIZE or code == "C128":
        raise CheckpointDamaged(f"{name[:100]!r} has the dtype {str(code)[:50]!r}, which torch has no tensors for.")
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if not all(type(n) is int and 0 <= n < 2**63 for n in numbers) or len(shape) > MOST_DIMS or len(offsets) != 2:
        raise CheckpointDamaged(f"{name[:100]!r} has the shape {str(shape)[:100]} at {str(offsets)[:100]}.")
    if code == "F4":
        if not shape or shape[-1] % 2:
            raise CheckpointDamaged(f"{name[:100]!r} has the shape {shape}: two numbers of F4 share a byte.")
        shape = [*shape[:-1], shape[-1] // 2]
    nbytes = math.prod(shape) * ITEMSIZE[code]
    first, last = offsets
    if last - first != nbytes:
        raise CheckpointDamaged(
            f"{name[:100]!r} ({code}, {str(shape)[:100]}) needs {nbytes} bytes, its data_offsets have {last - first}."
        )
    return code, tuple(shape), first, last


def _as_complex(name: str, code: str, shape: Shape) -> tuple[str, Shape]:
    if code != "F64" or shape[-1:] != (2,):
        raise CheckpointDamaged(f"{name[:100]!r} is noted as complex, but has the dtype {code} and the shape {shape}.")
    return "C128", shape[:-1]


def _notes(text: str) -> dict[str, Any]:
    """What our exports store in a file besides its tensors, checked."""
    extra = {"values": {}, "per_worker": [], "workers": 1, "complex": []} | strict_json(text)
    names = extra["per_worker"], extra["complex"]
    if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in names):
        raise CheckpointDamaged("its notes have no lists of names.")
    if type(extra["workers"]) is not int or extra["workers"] < 1 or not isinstance(extra["values"], dict):
        raise CheckpointDamaged("its notes are none that Gridwise writes.")
    for value in extra["values"].values():
        if not is_length(value):
            decoded(value)
    return extra
