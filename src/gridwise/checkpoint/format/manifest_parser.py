"""Read a manifest that may be damaged or hostile: every claim is checked before anything is allocated or opened.

Names cannot leave the folder; sizes, offsets, blocks and checksums must be consistent; the blocks of a file follow one
another without overlap or gap, and those of a tensor fill it exactly once. So nothing larger than the files themselves
is ever allocated. Anything inconsistent raises a `CheckpointDamaged` that names the file. A deliberate forgery with
matching checksums can put other numbers into tensors, but cannot run code or exceed these bounds.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from typing import Any

from ...errors import CheckpointDamaged, CheckpointError, CheckpointNotFound
from ...grid import Box, Shape, tiling_problem
from ..store_path import Place, StorePath, place_of
from .chunks import DIGITS, checksum, number_of_chunks
from .manifest import FORMAT_VERSION, ITEMSIZE, MANIFEST, Manifest, StoredBlock, StoredFile, StoredTensor
from .open_inside import open_inside
from .values import check_keys, decoded

MOST_DIMS = 64
LARGEST_MANIFEST = 256 << 20
LARGEST_HEADER = 128 << 20

LARGE_MANIFEST = 1 << 20
"""Bytes above which both ends of a manifest are checked before the rest is read."""
_END = 256

_HEAD = re.compile(rb'\{\s*"format"\s*:\s*"gridwise-checkpoint"\s*,\s*"format_version"\s*:\s*(\d{1,9})\s*,')
_TAIL = re.compile(rb'"checksum":"([0-9a-f]{16})"\}\n\Z')
_ID_LINE = re.compile(rb'\n"id":"([0-9a-f]{32})"')
_ID = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"w[0-9]{1,7}\.safetensors")
_HEXADECIMAL = "0123456789abcdef"


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of the checkpoint at `path`, checked.

    Parameters
    ----------
    path : the folder of a checkpoint

    Examples
    --------
    >>> checkpoint.read_manifest(path).tensors['model/weight'].shape
    (2, 2)
    """
    folder = place_of(path)
    return from_bytes(read_manifest_bytes(folder), folder / MANIFEST)


def read_manifest_bytes(path: Place) -> bytes:
    """The bytes of the manifest of the checkpoint at `path`, unchecked."""
    if isinstance(path, StorePath):
        return _bytes_in_store(path)
    name = path / MANIFEST
    try:
        with open(open_inside(path, MANIFEST), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointNotFound(_nothing_at(path))
            if status.st_size > LARGEST_MANIFEST:
                raise CheckpointDamaged(f"{name} has {status.st_size} bytes: more than a manifest may have.")
            if status.st_size > LARGE_MANIFEST:  # its ends first: a huge sparse file costs its writer nothing
                _check_ends(file.read(_END), os.pread(file.fileno(), _END, status.st_size - _END), name)
                file.seek(0)
            return file.read(status.st_size)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise CheckpointNotFound(_nothing_at(path)) from None
    except OSError as error:
        kind = CheckpointDamaged if error.errno == errno.ELOOP else CheckpointError
        raise kind(f"{name} cannot be read: {error}.") from error


def _bytes_in_store(path: StorePath) -> bytes:
    size = (path / MANIFEST).size()
    if size is None:
        raise CheckpointNotFound(_nothing_at(path))
    if size > LARGEST_MANIFEST:
        raise CheckpointDamaged(f"{path / MANIFEST} has {size} bytes: more than a manifest may have.")
    try:
        return (path / MANIFEST).read_bytes()
    except FileNotFoundError:  # removed at this very moment
        raise CheckpointNotFound(_nothing_at(path)) from None


def _nothing_at(path: Place) -> str:
    if not path.exists():
        return f"there is no checkpoint at {path}: nothing exists there."
    if path.is_dir() and any(path.glob("data-*")):
        return f"there is no checkpoint at {path}: no {MANIFEST}, only data of a save that was interrupted before its commit."
    return f"there is no checkpoint at {path}: it has no {MANIFEST}."


def from_bytes(data: bytes, name: Place) -> Manifest:
    """The manifest in `data`; raises a `CheckpointDamaged` naming the file `name` if anything is inconsistent."""
    check_sum(data, name)
    try:
        return _parsed(data)
    except MALFORMED as error:
        raise damaged(f"{name} is damaged", error) from None


MALFORMED = (
    CheckpointDamaged, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError,
)  # fmt: skip
"""Errors that parsing malformed data can raise."""


def damaged(what: str, error: Exception) -> CheckpointDamaged:
    why = str(error) if isinstance(error, CheckpointDamaged) else f"{type(error).__name__}: {str(error)[:200]}"
    return CheckpointDamaged(f"{what}: {why}")


def id_of(data: bytes, name: Place) -> str:
    """The id of the save, without parsing all of its manifest; the checksum is still checked."""
    check_sum(data, name)
    found = likely_id(data)
    if found is None:
        raise CheckpointDamaged(f"{name} is damaged: it has no id.")
    return found


def likely_id(data: bytes) -> str | None:
    """The id that a manifest appears to have; nothing is checked."""
    found = _ID_LINE.search(data, 0, 1000)
    return None if found is None else found[1].decode()


def check_sum(data: bytes, name: Place) -> None:
    """Raise unless this is a complete manifest of a version that can be read."""
    tail = _check_ends(data, data[-_END:], name)
    found = checksum(memoryview(data)[: len(data) - len(tail[0])])
    if found != tail[1].decode():
        raise CheckpointDamaged(f"{name} is damaged: its checksum is {found}, saved was {tail[1].decode()}.")


def _check_ends(start: bytes, end: bytes, name: Place) -> re.Match[bytes]:
    """The match of the checksum line at the end; raises if a manifest cannot start or end like this."""
    head = _HEAD.match(start)
    if head is None:
        raise CheckpointDamaged(f"{name} is no manifest of a Gridwise checkpoint: it does not start like one.")
    if int(head[1]) > FORMAT_VERSION:
        raise CheckpointDamaged(
            f"{name} has format_version {int(head[1])}, this Gridwise reads up to {FORMAT_VERSION}.\n"
            "  fix: a newer Gridwise."
        )
    tail = _TAIL.search(end)
    if tail is None:
        raise CheckpointDamaged(f"{name} is damaged: it does not end with its checksum (cut short, or edited).")
    return tail


def strict_json(data: bytes | str) -> Any:
    """Parsed JSON; raises for duplicate names and for numbers that are not finite."""
    return json.loads(data, object_pairs_hook=_without_twins, parse_constant=_no_constant, parse_float=_finite)


def _parsed(data: bytes) -> Manifest:
    tree = _dict(strict_json(data), "the manifest")
    files = tuple(map(_stored_file, _list(tree["files"], "files")))
    _must(len({file.name for file in files}) == len(files), "a data file is listed twice")
    items = _dict(tree["tensors"], "tensors").items()
    tensors = {key: _stored_tensor(key, item, files) for key, item in items}
    version = tree["format_version"]
    _must(type(version) is int and 1 <= version <= FORMAT_VERSION, f"format_version is {version!r}")
    identity = tree["id"]
    _must(isinstance(identity, str) and _ID.fullmatch(identity), "`id` must be 32 hexadecimal digits")
    workers = _natural(tree["workers"], "workers")
    _must(workers >= 1, "`workers` must be at least 1")
    _check_bytes(tensors, files)
    values = _dict(tree["values"], "values")
    for key in values:
        _must(key not in tensors, f"{key!r} is both a tensor and a value")
    per_worker = {key: _natural(count, key) for key, count in _dict(tree["per_worker"], "per_worker").items()}
    for key, count in per_worker.items():
        _must(count == workers, f"{key!r} has values of {count} workers, saved were {workers}")
    tied = _dict(tree.get("tied", {}), "tied")
    for key, first in tied.items():
        _must(isinstance(first, str) and first in tensors and first not in tied, f"{key!r} is tied to no tensor")
        _must(key not in tensors and key not in values, f"{key!r} stands for two things")
    tensors |= {key: tensors[first] for key, first in tied.items()}
    metadata = _dict(tree.get("metadata", {}), "metadata")
    for value in metadata.values():
        decoded(value)
    for keys in (list(tensors), list(values), list(per_worker)):
        check_keys(keys, per_worker)
    return Manifest(
        identity, workers, files, tensors, values, per_worker, str(tree["written_by"]), str(tree["written_at"]), version,
        tied=tied, metadata=metadata,
    )  # fmt: skip


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise CheckpointDamaged(f"the name {twin[:100]!r} occurs twice.")
    return result


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


def _no_constant(text: str) -> Any:
    raise CheckpointDamaged(f"{text[:50]} is no number that JSON can hold.")


def _must(holds: object, problem: str) -> None:
    if not holds:
        raise CheckpointDamaged(f"{problem}.")


def _natural(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise CheckpointDamaged(f"{what!r} must be a whole number, not {str(value)[:50]!r}.")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise CheckpointDamaged(f"{what!r} must be a list.")
    return value


def _dict(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointDamaged(f"{what!r} must be an object.")
    return value


def _stored_file(item: object) -> StoredFile:
    name, size, header, header_sum = _list(item, "files")
    _must(isinstance(name, str) and _FILE.fullmatch(name), f"{str(name)[:100]!r} is no name of a data file")
    _must(_is_sums(header_sum, 1), f"{name}: the checksum of the header must be {DIGITS} hexadecimal digits")
    file = StoredFile(name, _natural(size, name), _natural(header, name), header_sum)
    fits = 8 < file.header <= min(file.size, LARGEST_HEADER)
    _must(fits, f"{name}: a header of {file.header} bytes does not fit {file.size} bytes, or is too large")
    return file


def _is_sums(text: object, count: int) -> bool:
    return isinstance(text, str) and len(text) == count * DIGITS and not text.strip(_HEXADECIMAL)


def _stored_tensor(key: str, item: Any, files: tuple[StoredFile, ...]) -> StoredTensor:
    code, extents, blocks = item
    if not isinstance(code, str) or code not in ITEMSIZE:
        raise CheckpointDamaged(f"{key!r} has the unknown dtype {str(code)[:50]!r}.")
    shape = tuple(extents)
    if len(shape) > MOST_DIMS:
        raise CheckpointDamaged(f"{key!r} has {len(shape)} dims, at most {MOST_DIMS} are allowed.")
    for extent in shape:
        if type(extent) is not int or not 0 <= extent < 2**63:
            raise CheckpointDamaged(f"{key!r} has the shape {str(extents)[:100]}.")
    stored = tuple([_stored_block(key, block, shape, ITEMSIZE[code], files) for block in blocks])
    is_whole = len(stored) == 1 and stored[0].box is None
    if not is_whole and not (0 in shape and not stored):
        problem = tiling_problem(shape, [block.box or Box.of_shape(shape) for block in stored])
        _must(problem is None, f"the blocks of {key!r} {problem}")
    return StoredTensor(code, shape, stored)


def _stored_block(key: str, item: Any, shape: Shape, itemsize: int, files: tuple[StoredFile, ...]) -> StoredBlock:
    box = None
    if len(item) == 5:
        file, offset, sums, start, stop = item
        box = _box(key, start, stop, shape)
        volume = box.volume
    else:
        file, offset, sums = item
        volume = math.prod(shape)
    if type(file) is not int or not 0 <= file < len(files):
        raise CheckpointDamaged(f"{key!r} lies in file number {str(file)[:20]}, there are {len(files)}.")
    nbytes = volume * itemsize
    if type(offset) is not int or offset < files[file].header or offset + nbytes > files[file].size:
        raise CheckpointDamaged(
            f"{key!r} has {nbytes} bytes at {str(offset)[:50]} of {files[file].name}, which has {files[file].size}."
        )
    if type(sums) is not str or len(sums) != DIGITS * number_of_chunks(nbytes) or sums.strip(_HEXADECIMAL):
        raise CheckpointDamaged(f"{key!r} needs {number_of_chunks(nbytes)} checksums of {DIGITS} hexadecimal digits.")
    return StoredBlock(file, offset, sums, box)


def _box(key: str, start: list[Any], stop: list[Any], shape: Shape) -> Box:
    ends = [*_list(start, key), *_list(stop, key)]
    fits = len(start) == len(stop) == len(shape) and all(type(end) is int for end in ends)
    fits = fits and all(0 <= a < b <= n for a, b, n in zip(start, stop, shape, strict=True))
    _must(fits, f"{key!r} has a block {str(start)[:100]} to {str(stop)[:100]} outside its shape {list(shape)}")
    return Box(tuple(start), tuple(stop))


def _check_bytes(tensors: dict[str, StoredTensor], files: tuple[StoredFile, ...]) -> None:
    ranges: list[list[tuple[int, int, str]]] = [[] for _ in files]
    for key, (code, shape, stored) in tensors.items():
        for block in stored:
            nbytes = (block.box.volume if block.box else math.prod(shape)) * ITEMSIZE[code]
            ranges[block.file].append((block.offset, block.offset + nbytes, key))
    for file, of_file in zip(files, ranges, strict=True):
        check_ranges(file.name, of_file, file.header, file.size)


def check_ranges(file: str, ranges: list[tuple[int, int, str]], header: int, size: int) -> None:
    """Raise unless the tensors follow one another from the header to the end of a file: no overlap, nothing hidden."""
    end = header
    for start, stop, key in sorted(ranges):
        if start != end:
            raise CheckpointDamaged(f"{key[:100]!r} starts at byte {start} of {file}, where byte {end} comes next.")
        end = stop
    _must(end == size, f"{file} has {size} bytes, its tensors end at {end}")
