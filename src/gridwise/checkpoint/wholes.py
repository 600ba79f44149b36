"""The tensors of a manifest that are whole in one block, as most are: read and checked many at a time.

Our own manifests have a line for each tensor, and a line feed is never part of a JSON string. So the lines of the tensors
can be taken out, and the rest read without them. Those that look like

    "model/weight":["F32",[8,8],[[0,272,"5c1d0000aaaabbbb"]]],

are matched by one regular expression, which checks names, types and digits as strictly as JSON does, and what the numbers
say is checked in columns. A line that looks otherwise is for `parse`; and if anything at all is odd nothing is accepted
here, and `parse` reads the whole as JSON, looks at each tensor, and names the culprit.
"""

from __future__ import annotations

import math
import re
import uuid
from itertools import repeat
from typing import NamedTuple

import numpy as np

from .chunks import DIGITS, number_of_chunks
from .manifest import ITEMSIZE, StoredBlock, StoredFile, StoredTensor

MOST_DIMS = 64
LARGEST = 2**62

_OPENS = b'\n"tensors":{\n'
_CLOSES = b'\n},\n"values":'
_LINE = re.compile(
    r'^"([^"\\\x00-\x1f]+)":\[("[A-Z0-9_]+",\[[0-9,]*\],\[\[[0-9]+),([1-9][0-9]{0,17}),"([0-9a-f]+)"\]\]\],$',
    re.MULTILINE,
)
_KIND = re.compile(
    r'"([A-Z0-9_]+)",\[((?:[1-9][0-9]{0,17}(?:,[1-9][0-9]{0,17})*)?)\],\[\[(0|[1-9][0-9]{0,6})'
).fullmatch


class Wholes(NamedTuple):
    """Whole tensors in the order of the manifest, and in columns the file that holds each, and from where to where."""

    tensors: dict[str, StoredTensor]
    files: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


NONE = Wholes({}, *(np.empty(0, dtype=np.int64) for _ in range(3)))


def without_tensors(data: bytes) -> tuple[bytes, str, str] | None:
    """A manifest with a word in the place of its tensors, that word, and their lines; None if it is not laid out so."""
    start, stop = data.find(_OPENS), data.find(_CLOSES)
    if not 0 <= start < stop or data.count(_OPENS) > 1 or data.count(_CLOSES) > 1 or not data.isascii():
        return None
    word = uuid.uuid4().hex
    rest = b'%b\n"tensors":"%b"%b' % (data[:start], word.encode(), data[stop + 2 :])
    return rest, word, data[start + len(_OPENS) : stop].decode("ascii") + ","


def wholes_of(lines: str, files: tuple[StoredFile, ...]) -> tuple[Wholes, dict[int, str]] | None:
    """The lines that are tensors whole in one block, and the others by their numbers; None if anything is odd."""
    found = _LINE.findall(lines)
    others = {}
    if len(found) <= lines.count("\n"):
        others = {place: line for place, line in enumerate(lines.split("\n")) if not _LINE.fullmatch(line)}
    if not found:
        return NONE, others
    keys, texts, offset_texts, sums = zip(*found, strict=True)
    kinds = {text: _kind(text) for text in set(texts)}  # few: many tensors are alike
    if None in kinds.values():
        return None
    codes, shapes, numbers, sizes, digits = zip(*map(kinds.__getitem__, texts), strict=True)
    if list(map(len, sums)) != list(digits):
        return None
    offsets = list(map(int, offset_texts))
    number, start = np.array(numbers, dtype=np.int64), np.array(offsets, dtype=np.int64)
    stop = start + np.array(sizes, dtype=np.int64)
    if number.max() >= len(files):
        return None
    headers, ends = np.array([(file.header, file.size) for file in files], dtype=np.int64).T
    if (start < headers[number]).any() or (stop > ends[number]).any():
        return None
    blocks = map(tuple.__new__, repeat(StoredBlock), zip(numbers, offsets, sums, repeat(None)))
    tensors = map(tuple.__new__, repeat(StoredTensor), zip(codes, shapes, zip(blocks, strict=True), strict=True))
    stored = dict(zip(keys, tensors, strict=True))
    return (Wholes(stored, number, start, stop), others) if len(stored) == len(keys) else None


def _kind(text: str) -> tuple[str, tuple[int, ...], int, int, int] | None:
    """Dtype, shape, number of the file, bytes and digits of the checksums of a tensor; None if any of it is odd."""
    found = _KIND(text)
    if found is None:
        return None
    code, extents, number = found.groups()
    shape = tuple(map(int, extents.split(","))) if extents else ()
    nbytes = ITEMSIZE.get(code, 0) * math.prod(shape)
    if not 0 < nbytes < LARGEST or len(shape) > MOST_DIMS:
        return None
    return code, shape, int(number), nbytes, DIGITS * number_of_chunks(nbytes)
