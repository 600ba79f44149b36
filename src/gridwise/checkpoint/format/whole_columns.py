"""The tensors of a manifest that are whole in one chunk, as most of very many are: read, checked and kept in columns.

Our own manifests have a line for each tensor, and a line feed is never part of a JSON string. So the lines of the
tensors can be taken out, and the rest read without them. Those that look like

    "model/weight":["F32",[8,8],[[0,272,"5c1d0000aaaabbbb"]]],
    a            b  c   d               e                f

have six quotes, and where these are tells where everything else is: all lines are looked at together, as one array of
bytes. What stands between the words and numbers is compared as strictly as JSON would, and what the numbers say is
checked in columns. A line that looks otherwise is for `manifest_parser`; and if anything at all is odd nothing is
accepted here, and `manifest_parser` reads the whole as JSON, looks at each tensor, and names the culprit.
"""

from __future__ import annotations

import math
import re
import uuid
from binascii import hexlify, unhexlify
from typing import NamedTuple

import numpy as np

from .chunks import CHUNK, DIGITS
from .manifest import ITEMSIZE, StoredFile

MOST_DIMS = 64

_OPENS = b'\n"tensors":{\n'
_CLOSES = b'\n},\n"values":'
_KIND = re.compile(r'([A-Z0-9_]+)",\[((?:[1-9][0-9]{0,17}(?:,[1-9][0-9]{0,17})*)?)\],\[\[(0|[1-9][0-9]{0,6})').fullmatch

_QUOTE, _COMMA, _LINE_FEED, _SPACE, _ZERO = b'",\n 0'
_MOST_DIGITS = 18
"""Of an offset: as many as always fit into 63 bits."""
_WIDEST = 255
"""Bytes of texts that are laid side by side."""
_FEW = 16
"""Different texts that are looked for one after the other."""


class WholeTensors(NamedTuple):
    """Whole tensors in columns, in the order of the manifest: what each is, the file that holds it, and where."""

    keys: list[str]
    kinds: np.ndarray
    """Of each, its place in `codes` and `shapes`: many tensors are alike."""
    codes: list[str]
    shapes: list[tuple[int, ...]]
    sums: np.ndarray
    """Checksums as unsigned numbers of 64 bits."""
    files: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray


_NONE = np.empty(0, dtype=np.int64)
NO_WHOLES = WholeTensors([], _NONE, [], [], _NONE.astype(np.uint64), _NONE, _NONE, _NONE)


def without_tensors(data: bytes) -> tuple[bytes, str, bytes] | None:
    """A manifest with a word in the place of its tensors, that word, and their lines; None if it is not laid out so."""
    start, stop = data.find(_OPENS), data.rfind(_CLOSES)
    if not 0 <= start < stop or not data.isascii():
        return None
    word = uuid.uuid4().hex
    rest = b'%b\n"tensors":"%b"%b' % (data[:start], word.encode(), data[stop + 2 :])
    return rest, word, data[start + len(_OPENS) : stop]


def whole_tensors_of(lines: bytes, files: tuple[StoredFile, ...]) -> tuple[WholeTensors, dict[int, str]] | None:
    """The lines that are tensors whole in one chunk, and the others by their numbers; None if anything is odd."""
    digits = len(str(max((file.size for file in files), default=0)))
    wholes, others = _columns_of(lines, digits), {}
    if wholes is None:
        each = f"{lines.decode('ascii')},".split("\n")
        others = {place: line for place, line in enumerate(each) if not _looks_whole(line)}
        if len(others) == len(each):
            return NO_WHOLES, others
        left = "\n".join([line for place, line in enumerate(each) if place not in others])
        wholes = _columns_of(left.removesuffix(",").encode("ascii"), digits)
    if wholes is None or wholes.files.max() >= len(files):
        return None
    headers, ends = np.array([(file.header, file.size) for file in files], dtype=np.int64).T
    in_file = (wholes.starts >= headers[wholes.files]) & (wholes.starts + wholes.sizes <= ends[wholes.files])
    return (wholes, others) if in_file.all() else None


def _looks_whole(line: str) -> bool:
    return line.endswith('"]]],') and line[-22:-21] == '"' and line.count('"') == 6 and "\\" not in line


def _columns_of(lines: bytes, most_digits: int) -> WholeTensors | None:
    """All lines in columns; None if any is not as it has to be, or has an offset of more than so many digits."""
    text = np.frombuffer(lines, dtype=np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    count, left = divmod(len(quotes), 6)
    if not count or left or np.count_nonzero(text < _SPACE) != count - 1 or b"\\" in lines:
        return None
    a, b, c, _, e, f = quotes.reshape(count, 6).T
    if not _are_framed(text, a, b, c, e, f):
        return None
    offsets = _numbers_before(text, e - 1, min(most_digits, _MOST_DIGITS))
    sums = _sums(_windows(text, e + 1, DIGITS).tobytes())
    if offsets is None or sums is None:
        return None
    numbers, commas = offsets
    texts, which = _told_apart(text, c + 1, commas)
    kinds = [kind for each in texts if (kind := _kind(each)) is not None]
    if len(kinds) < len(texts):
        return None
    codes, shapes, *numbers_of = (list(column) for column in zip(*kinds, strict=True))
    files, sizes = (np.array(column, dtype=np.int64)[which] for column in numbers_of)
    return WholeTensors(_texts(text, a + 1, b), which, codes, shapes, sums, files, numbers, sizes)


def _windows(text: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """So many bytes from each of these places on, a row for each."""
    everywhere = np.ndarray(len(text) - width + 1, dtype=f"V{width}", buffer=text, strides=(1,))
    return everywhere[starts].view(np.uint8).reshape(-1, width)


def _padded(text: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """The same, with zeros after as many bytes as each is long."""
    return _windows(text, starts, width) * np.tri(width + 1, width, -1, dtype=np.uint8)[lengths]


def _texts(text: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> list[str]:
    """What stands between these places: no line feed does, so all of it is cut out as one text of lines."""
    lengths = stops - starts
    width = int(lengths.max()) + 1
    if width > _WIDEST or starts[-1] + width > len(text):
        cut = [text[start:stop].tobytes() for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        return [each.decode("ascii") for each in cut]
    rows = _padded(text, starts, lengths, width)
    rows[np.arange(len(rows)), lengths] = _LINE_FEED
    return rows.tobytes().replace(b"\0", b"")[:-1].decode("ascii").split("\n")


def _told_apart(text: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The different texts between these places, and which of them stands at each."""
    lengths = stops - starts
    width = -(-int(lengths.max()) // 8) * 8
    which = np.full(len(starts), -1)
    found: list[str] = []
    if width <= _WIDEST and starts[-1] + width <= len(text):
        words = _padded(text, starts, lengths, width).view(np.uint64).T
        while len(found) < _FEW and (left := int(np.argmin(which))) >= 0 and which[left] < 0:
            which[np.logical_and.reduce([word == word[left] for word in words])] = len(found)
            found += _texts(text, starts[left : left + 1], stops[left : left + 1])
        if which.min() >= 0:
            return found, which
    texts = _texts(text, starts, stops)
    places = {each: place for place, each in enumerate(dict.fromkeys(texts))}
    return list(places), np.array(list(map(places.__getitem__, texts)), dtype=np.int64)


def _are_framed(text: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, e: np.ndarray, f: np.ndarray) -> bool:
    """Whether each line is "key":["...,"16 digits"]]] with quotes at these places, and a comma before the next one."""
    return bool(
        a[0] == 0
        and (a[1:] == f[:-1] + 6).all()
        and len(text) == f[-1] + 4
        and (b > a + 1).all()
        and (c == b + 3).all()
        and (f == e + 1 + DIGITS).all()
        and _stands(b":[", text, b + 1)
        and _stands(b"]]]", text, f + 1)
        and _stands(b",\n", text, f[:-1] + 4)
    )


def _stands(word: bytes, text: np.ndarray, starts: np.ndarray) -> bool:
    """Whether the word stands at all these places."""
    return all((text[starts + place] == byte).all() for place, byte in enumerate(word))


def _sums(digits: bytes) -> np.ndarray | None:
    """The checksums that all these digits are; None if any is not as we write it."""
    try:
        data = unhexlify(digits)
    except ValueError:
        return None
    return np.frombuffer(data, dtype=">u8").astype(np.uint64) if hexlify(data) == digits else None


def _numbers_before(text: np.ndarray, stops: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The numbers between these commas and the ones before them, and where those are; None if any is no such number."""
    if stops[0] <= most:
        return None
    windows = _windows(text, stops - most - 1, most + 1)
    digits = np.ascontiguousarray(windows.T) - np.uint8(_ZERO)  # the last ones are the numbers' last ones
    lengths = np.argmin(digits[::-1] < 10, axis=0)  # 0: none, or too many
    commas = stops - 1 - lengths
    if (text[stops] != _COMMA).any() or (text[commas] != _COMMA).any() or not lengths.all():
        return None
    if (text[commas + 1] == _ZERO).any():
        return None
    numbers = np.zeros(len(stops), dtype=np.int64)
    for place, column in zip(range(most, -1, -1), digits, strict=True):
        numbers = numbers * 10 + column * (place < lengths)
    return numbers, commas


def _kind(text: str) -> tuple[str, tuple[int, ...], int, int] | None:
    """Dtype, shape, number of the file and bytes of a tensor; None if any of it is odd."""
    found = _KIND(text)
    if found is None:
        return None
    code, extents, number = found.groups()
    shape = tuple(map(int, extents.split(","))) if extents else ()
    nbytes = ITEMSIZE.get(code, 0) * math.prod(shape)
    return (code, shape, int(number), nbytes) if 0 < nbytes <= CHUNK and len(shape) <= MOST_DIMS else None
