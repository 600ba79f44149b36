"""The tensors of a manifest that are whole in one chunk, as most of very many are: read, checked and kept in columns.

Our own manifests have a line for each tensor, and a line feed is never part of a JSON string. So the lines of the tensors
can be taken out, and the rest read without them. Those that look like

    "model/weight":["F32",[8,8],[[0,272,"5c1d0000aaaabbbb"]]],
    a            b  c   d               e                f

have six quotes, and where these are tells where everything else is: all lines are looked at together, as one array of
bytes. What stands between the words and numbers is compared as strictly as JSON would, and what the numbers say is
checked in columns. A line that looks otherwise is for `parse`; and if anything at all is odd nothing is accepted here, and
`parse` reads the whole as JSON, looks at each tensor, and names the culprit.
"""

from __future__ import annotations

import math
import re
import uuid
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .chunks import CHUNK, DIGITS
from .manifest import ITEMSIZE, StoredFile

MOST_DIMS = 64

_OPENS = b'\n"tensors":{\n'
_CLOSES = b'\n},\n"values":'
_KIND = re.compile(r'([A-Z0-9_]+)",\[((?:[1-9][0-9]{0,17}(?:,[1-9][0-9]{0,17})*)?)\],\[\[(0|[1-9][0-9]{0,6})').fullmatch

_QUOTE, _COMMA, _LINE_FEED, _SPACE = b'",\n '
_NO_DIGIT = 16
_DIGIT = np.full(256, _NO_DIGIT, dtype=np.uint8)
_DIGIT[list(b"0123456789abcdef")] = range(16)
_MOST_DIGITS = 18
"""Of an offset: as many as always fit into 63 bits."""
_WIDEST = 64


class Wholes(NamedTuple):
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
NO_WHOLES = Wholes([], _NONE, [], [], _NONE.astype(np.uint64), _NONE, _NONE, _NONE)


def without_tensors(data: bytes) -> tuple[bytes, str, str] | None:
    """A manifest with a word in the place of its tensors, that word, and their lines; None if it is not laid out so."""
    start, stop = data.find(_OPENS), data.rfind(_CLOSES)
    if not 0 <= start < stop or not data.isascii():
        return None
    word = uuid.uuid4().hex
    rest = b'%b\n"tensors":"%b"%b' % (data[:start], word.encode(), data[stop + 2 :])
    return rest, word, data[start + len(_OPENS) : stop].decode("ascii") + ","


def wholes_of(lines: str, files: tuple[StoredFile, ...]) -> tuple[Wholes, dict[int, str]] | None:
    """The lines that are tensors whole in one chunk, and the others by their numbers; None if anything is odd."""
    wholes, others = _columns_of(lines), {}
    if wholes is None:
        each = lines.split("\n")
        others = {place: line for place, line in enumerate(each) if not _looks_whole(line)}
        if len(others) == len(each):
            return NO_WHOLES, others
        wholes = _columns_of("\n".join([line for place, line in enumerate(each) if place not in others]))
    if wholes is None or wholes.files.max() >= len(files):
        return None
    headers, ends = np.array([(file.header, file.size) for file in files], dtype=np.int64).T
    in_file = (wholes.starts >= headers[wholes.files]) & (wholes.starts + wholes.sizes <= ends[wholes.files])
    return (wholes, others) if in_file.all() else None


def _looks_whole(line: str) -> bool:
    return line.endswith('"]]],') and line[-22:-21] == '"' and line.count('"') == 6 and "\\" not in line


def _columns_of(lines: str) -> Wholes | None:
    """All lines in columns; None if any is not as it has to be."""
    text = np.frombuffer(lines.encode("ascii"), dtype=np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    count, left = divmod(len(quotes), 6)
    if not count or left or np.count_nonzero(text < _SPACE) != count - 1 or "\\" in lines:
        return None
    a, b, c, _, e, f = quotes.reshape(count, 6).T
    if not _are_framed(text, a, b, c, e, f):
        return None
    starts = _numbers_before(text, e - 1)
    digits = _DIGIT[text[e[:, None] + np.arange(1, 1 + DIGITS)]]
    if starts is None or (digits == _NO_DIGIT).any():
        return None
    numbers, commas = starts
    sums = (digits[:, 0::2] << 4 | digits[:, 1::2]).view(">u8").astype(np.uint64).ravel()
    texts = _texts(text, c + 1, commas)
    places = {each: place for place, each in enumerate(dict.fromkeys(texts))}
    kinds = [kind for each in places if (kind := _kind(each.decode("ascii"))) is not None]
    if len(kinds) < len(places):
        return None
    which = np.array(list(map(places.__getitem__, texts)), dtype=np.int64)
    codes, shapes, *numbers_of = (list(column) for column in zip(*kinds, strict=True))
    files, sizes = (np.array(column, dtype=np.int64)[which] for column in numbers_of)
    keys = [lines[start:stop] for start, stop in zip((a + 1).tolist(), b.tolist(), strict=True)]
    return Wholes(keys, which, codes, shapes, sums, files, numbers, sizes)


def _texts(text: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> list[bytes]:
    """What stands between these places. They are short, or there would be too much to lay side by side."""
    lengths = stops - starts
    width = int(lengths.max())
    if width > _WIDEST:
        return [text[start:stop].tobytes() for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    rows = sliding_window_view(np.pad(text, (0, width)), width)[starts]
    rows[np.arange(width) >= lengths[:, None]] = 0
    found: list[bytes] = rows.view(f"S{width}").ravel().tolist()
    return found


def _are_framed(text: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, e: np.ndarray, f: np.ndarray) -> bool:
    """Whether each line is "key":["...,"16 digits"]]], with quotes at these places, and the next one follows it."""
    return bool(
        a[0] == 0
        and (a[1:] == f[:-1] + 6).all()
        and (text[a[1:] - 1] == _LINE_FEED).all()
        and len(text) == f[-1] + 5
        and (b > a + 1).all()
        and (c == b + 3).all()
        and (f == e + 1 + DIGITS).all()
        and (text[b[:, None] + np.arange(1, 3)] == list(b":[")).all()
        and (text[f[:, None] + np.arange(1, 5)] == list(b"]]],")).all()
    )


def _numbers_before(text: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The numbers between these commas and the ones before them, and where those are; None if any is no such number."""
    digits = _DIGIT[text[stops[:, None] - np.arange(1, 2 + _MOST_DIGITS)]]  # from right to left
    lengths = np.argmin(digits < 10, axis=1)  # 0: none, or too many
    commas = stops - 1 - lengths
    if (text[stops] != _COMMA).any() or (text[commas] != _COMMA).any() or not lengths.all():
        return None
    if (digits[np.arange(len(stops)), lengths - 1] == 0).any():
        return None
    powers = np.arange(lengths.max())
    used = np.where(powers < lengths[:, None], digits[:, : len(powers)], 0)
    return used @ 10**powers, commas


def _kind(text: str) -> tuple[str, tuple[int, ...], int, int] | None:
    """Dtype, shape, number of the file and bytes of a tensor; None if any of it is odd."""
    found = _KIND(text)
    if found is None:
        return None
    code, extents, number = found.groups()
    shape = tuple(map(int, extents.split(","))) if extents else ()
    nbytes = ITEMSIZE.get(code, 0) * math.prod(shape)
    return (code, shape, int(number), nbytes) if 0 < nbytes <= CHUNK and len(shape) <= MOST_DIMS else None
