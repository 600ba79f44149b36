"""The manifest: one JSON file that says what a checkpoint holds, where the bytes lie, and what their checksums are.

    {"format":"gridwise-checkpoint","format_version":1,
    "id":"9f1c...","written_by":"gridwise 0.1.0","written_at":"2025-01-31T12:00:00+00:00","workers":2,
    "files":[["w0.safetensors",4368,272,"8f0e..."],...],       name, bytes, bytes of its header, checksum of the header
    "tensors":{
    "model/weight":["F32",[8,8],[[0,272,"5c1d..."]]],          dtype, global shape, blocks: file, offset, checksums
    "model/bias":["F32",[8],[[0,528,"77a0...",[0],[4]],[1,200,"e2b4...",[4],[8]]]],     + start, stop if not the whole
    },
    "values":{"step":7},
    "per_worker":{"loader":2},
    "tied":{"model/head":"model/weight"},                       further names of a tensor, if there are any (version 2)
    "metadata":{"loss":0.25},                                   if there is any
    "checksum":"0123456789abcdef"}

The last line is the checksum of all bytes before it, and is checked before anything is parsed. The contents are still
not trusted: names cannot leave the folder, and sizes, offsets, blocks and checksums must be consistent and fill every
tensor exactly once, so nothing larger than the files themselves is ever allocated. docs/checkpoint-format.md describes
every byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...grid import Box, Shape
from .chunks import checksum

FORMAT_VERSION = 2
WITH_TIES = 2
"""The version of a manifest in which a tensor has several names; all others are written as version 1, which says the same."""
MANIFEST = "manifest.json"

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4": torch.float4_e2m1fn_x2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "C128": torch.complex128,
}
"""The dtypes by their safetensors names; C128 is our own, and its data is F64 with an extra last dim of 2.

Two numbers of F4 share a byte, which is one element of torch's tensor: headers of files count the numbers, in the last dim.
"""

CODES = {dtype: code for code, dtype in DTYPES.items()}
ITEMSIZE = {code: dtype.itemsize for code, dtype in DTYPES.items()}


class StoredFile(NamedTuple):
    """A data file: its name in the data folder, its size, the size of its header, and the header's checksum."""

    name: str
    size: int
    header: int
    header_sum: str


class StoredBlock(NamedTuple):
    """Where a block lies: file, offset from the file's start, checksums of its chunks, and its box (None: the whole)."""

    file: int
    offset: int
    sums: str
    box: Box | None


class StoredTensor(NamedTuple):
    """A tensor of the checkpoint: safetensors dtype, global shape, and blocks that fill it exactly once."""

    code: str
    shape: Shape
    blocks: tuple[StoredBlock, ...]

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.code]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.code]

    def boxes(self) -> list[Box]:
        return [block.box or Box.of_shape(self.shape) for block in self.blocks]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds.

    Parameters
    ----------
    id : of the save; 32 hexadecimal digits
    workers : how many workers saved
    files : the data files
    tensors : dtype, global shape and blocks, by key
    values : what is not a tensor, by key
    per_worker : the number of workers that have a value, by key
    written_by, written_at : for information only
    version : of the format
    tied : the further names of tensors that have several, each with its first one; all of them are in `tensors`
    metadata : what `save` was given as such, as JSON; `checkpoint.metadata` gives the values

    Examples
    --------
    >>> manifest = checkpoint.read_manifest(path)
    >>> manifest.workers, sorted(manifest.tensors)
    (1, ['model/bias', 'model/weight'])
    """

    id: str
    workers: int
    files: tuple[StoredFile, ...]
    tensors: Mapping[str, StoredTensor]
    values: dict[str, Any] = field(default_factory=dict)
    per_worker: dict[str, int] = field(default_factory=dict)
    written_by: str = ""
    written_at: str = ""
    version: int = 1
    files_of: Path | None = None
    """The folder of the files if another program wrote them: they have no checksums, and links are followed."""

    tied: Mapping[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return f"data-{self.id}"

    def __repr__(self) -> str:
        return f"<Manifest {self.id} of {len(self.tensors)} tensors, {self.nbytes:,} bytes, by {self.workers} workers>"

    @property
    def nbytes(self) -> int:
        """Bytes of all data files."""
        return sum(file.size for file in self.files)


def to_bytes(manifest: Manifest) -> bytes:
    """The manifest as it is stored, with a line for each tensor."""
    lines = [quoted(key) + _rest_of(tensor) for key, tensor in manifest.tensors.items() if key not in manifest.tied]
    head = {
        "id": manifest.id,
        "written_by": manifest.written_by,
        "written_at": manifest.written_at,
        "workers": manifest.workers,
        "files": [list(file) for file in manifest.files],
    }
    text = (
        f'{{"format":"gridwise-checkpoint","format_version":{manifest.version},\n'
        + compact(head)[1:-1]
        + ',\n"tensors":{\n'
        + ",\n".join(lines)
        + '\n},\n"values":'
        + compact(manifest.values)
        + ',\n"per_worker":'
        + compact(manifest.per_worker)
        + (',\n"tied":' + compact(manifest.tied) if manifest.tied else "")
        + (',\n"metadata":' + compact(manifest.metadata) if manifest.metadata else "")
        + ",\n"
    ).encode("ascii")
    return text + f'"checksum":"{checksum(text)}"}}\n'.encode("ascii")


compact = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii


def _rest_of(tensor: StoredTensor) -> str:
    """The line of a tensor after its name."""
    blocks = ",".join(map(_block_text, tensor.blocks))
    return f':["{tensor.code}",[{",".join(map(str, tensor.shape))}],[{blocks}]]'


def _block_text(block: StoredBlock) -> str:
    file, offset, sums, box = block
    if box is None:
        return f'[{file},{offset},"{sums}"]'
    return f'[{file},{offset},"{sums}",{compact(list(box.start))},{compact(list(box.stop))}]'
