"""Plain values and keys as JSON: what a checkpoint may hold besides tensors, and under which names.

A state is a tree; a checkpoint is flat. The key of a leaf is the path to it, joined by "/":

    {"model": {"conv.weight": w}, "steps": [3, 4], "at": {7: t}}    model/conv.weight    steps    at/#7

A number in a path (an int key, an index into a list) is written #7, the worker of a `PerWorker` value @2, and
characters that could be mistaken for these are escaped: ~0 is ~, ~1 is /, ~2 and ~3 are a leading # and @, ~4 is the
empty name. Every key therefore stands for exactly one place.

Values are None, bool, int, float, complex, str, bytes, lists, tuples and dicts (with str or int keys) of them, and
torch's dtypes, devices and sizes. Those that JSON lacks become objects with a single name that starts with $:
{"$tuple": [1, 2]}. Anything else is refused when it is saved. Nothing is ever evaluated or imported to read a value.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...errors import CheckpointDamaged, CheckpointMismatch

DEEPEST = 64
"""Most levels of nesting, for saving and for loading."""

LARGEST_INT = 8192
"""Most bits of an int."""

Json = Any


def joined(prefix: str, *parts: str | int) -> str:
    """The key of the path `parts` below `prefix`."""
    for part in parts:
        name = escaped(part)
        prefix = f"{prefix}/{name}" if prefix else name
    return prefix


def joined_all(prefix: str, names: Sequence[str | int]) -> list[str]:
    """The keys of many names below `prefix`."""
    if set(map(type, names)) == {str} and "" not in names:
        text = "".join(names)  # type: ignore[arg-type]
        if not any(mark in text for mark in "/~#@"):  # the usual case: nothing to escape
            return [f"{prefix}/{name}" for name in names] if prefix else list(names)  # type: ignore[arg-type]
    return [joined(prefix, name) for name in names]


def escaped(part: str | int) -> str:
    if isinstance(part, int):
        return f"#{part}"
    if not part:
        return "~4"
    if part[0] not in "#@" and "/" not in part and "~" not in part:
        return part
    name = part.replace("~", "~0").replace("/", "~1")
    if name[0] == "#":
        return "~2" + name[1:]
    return "~3" + name[1:] if name[0] == "@" else name


def unescaped(name: str) -> str | int:
    """The dict key or list index that a part of a key stands for; ValueError if `escaped` never returns this part.

    Otherwise two parts could stand for one place: `#1` and `#01`, `~05` and `~5`.
    """
    part: str | int
    if name.startswith("#"):
        part = int(name[1:])
    elif name == "~4":
        part = ""
    else:
        start, rest = ("#@"[name[1] == "3"], name[2:]) if name.startswith(("~2", "~3")) else ("", name)
        part = start + rest.replace("~1", "/").replace("~0", "~")
    if escaped(part) != name:
        raise ValueError(f"{name[:100]!r} is no part of a key")
    return part


def check_keys(keys: Sequence[str], per_worker: Mapping[str, int]) -> None:
    """Raise `CheckpointDamaged` for keys that no save writes; `per_worker` maps keys to their numbers of workers."""
    text = "/".join(keys)
    if text and not any(mark in text for mark in "~#@") and "//" not in text and "/" not in (text[0], text[-1]):
        return  # the usual case: no characters with a special meaning
    known: set[str] = set()
    for key in keys:
        parts = key.split("/")
        for place, part in enumerate(parts):
            if part in known:
                continue
            try:
                if part.startswith("@"):
                    _check_worker(part, per_worker.get("/".join(parts[:place]), 0))
                else:
                    unescaped(part)
                    known.add(part)
            except ValueError:
                raise CheckpointDamaged(f"{key[:200]!r} holds {part[:100]!r}, which is no name.") from None


def _check_worker(part: str, workers: int) -> None:
    number = int(part[1:])
    if part != f"@{number}" or not 0 <= number < workers:
        raise ValueError(part)


LISTS = {"$list": list, "$items": tuple}


def is_length(value: object) -> bool:
    """Whether a value is the length of a list or tuple whose items have entries of their own."""
    return isinstance(value, dict) and len(value) == 1 and not LISTS.keys().isdisjoint(value)


KEYS = {str, int}
"""Types that dict keys may have."""


def is_key(value: object) -> bool:
    return type(value) in KEYS


def encoded(value: object, key: str, depth: int = 0) -> Json:
    """`value` as JSON; `key` names it in errors."""
    if depth > DEEPEST:
        raise CheckpointMismatch(
            f"{key!r} is nested deeper than {DEEPEST} levels, or holds itself: it cannot be saved."
        )
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return _encoded_int(value, key)  # type: ignore[arg-type]
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}  # type: ignore[arg-type]
    if kind in ENCODERS:
        name, encode = ENCODERS[kind]
        return {name: encode(value)}
    if kind is list:
        return [encoded(item, key, depth + 1) for item in value]  # type: ignore[attr-defined]
    if kind in (tuple, torch.Size):
        return {"$tuple": [encoded(item, key, depth + 1) for item in value]}  # type: ignore[attr-defined]
    if isinstance(value, dict) and all(map(is_key, value)):
        if all(isinstance(name, str) and not name.startswith("$") for name in value):
            return {name: encoded(item, key, depth + 1) for name, item in value.items()}
        pairs = value.items()
        return {"$dict": [[encoded(name, key), encoded(item, key, depth + 1)] for name, item in pairs]}
    raise CheckpointMismatch(refusal(key, value))


def refusal(key: str, value: object) -> str:
    """Why a value cannot be saved."""
    what = f"a {type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, dict):
        what += f" with keys of type {', '.join(sorted({type(k).__name__ for k in value if not is_key(k)}))}"
    return (
        f"{key!r} is {what}, which is neither a tensor nor a plain value: it cannot be saved.\n"
        "  fix: save what it is made of (None, bool, int, float, complex, str, bytes, lists, tuples and dicts with str or "
        "int keys), or give it `state_dict` and `load_state_dict`."
    )


def _encoded_int(value: int, key: str) -> int:
    if value.bit_length() > LARGEST_INT:
        raise CheckpointMismatch(f"{key!r} is an int of {value.bit_length()} bits: at most {LARGEST_INT} can be saved.")
    return value


ENCODERS: dict[type, tuple[str, Callable[[Any], Json]]] = {
    bytes: ("$bytes", lambda value: base64.b64encode(value).decode("ascii")),
    complex: ("$complex", lambda value: [repr(value.real), repr(value.imag)]),
    torch.dtype: ("$dtype", lambda value: str(value).removeprefix("torch.")),
    torch.device: ("$device", str),
}


def decoded(value: Json, depth: int = 0) -> Any:
    """The value that `encoded` turned into this JSON."""
    if depth > 2 * DEEPEST:
        raise CheckpointDamaged(f"a value is nested deeper than {DEEPEST} levels.")
    if isinstance(value, list):
        return [decoded(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        if type(value) is int and value.bit_length() > LARGEST_INT:
            raise CheckpointDamaged(f"a value is an int of {value.bit_length()} bits, at most {LARGEST_INT} are saved.")
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name in DECODERS or name in CONTAINERS:
            try:
                return CONTAINERS[name](inner, depth) if name in CONTAINERS else _decoded_scalar(name, inner)
            except (ValueError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
                if isinstance(error, CheckpointDamaged):
                    raise
                raise CheckpointDamaged(
                    f"{str(value)[:200]} is no value that a checkpoint can hold ({error})."
                ) from None
    if any(name.startswith("$") for name in value):
        raise CheckpointDamaged(f"{str(value)[:200]} is no value that a checkpoint can hold.")
    return {name: decoded(item, depth + 1) for name, item in value.items()}


def _decoded_dict(pairs: Json, depth: int) -> dict[str | int, Any]:
    result = {name: decoded(item, depth + 1) for name, item in map(_list, _list(pairs))}
    if len(result) != len(pairs) or not all(map(is_key, result)):
        raise ValueError("keys must be different, and str or int")
    return result


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError(f"unknown: {str(value)[:50]!r}")
    return value


def _decoded_scalar(name: str, inner: Json) -> object:
    """The value, if a save would write it this way: `float` also accepts 1e999, 1_0 and digits of other scripts."""
    value = DECODERS[name](inner)
    if not isinstance(value, SCALARS) or encoded(value, name) != {name: inner}:
        raise ValueError(f"unknown: {str(inner)[:50]!r}")
    return value


SCALARS = (float, *ENCODERS)

DECODERS: dict[str, Callable[[Any], object]] = {
    "$float": float,
    "$bytes": base64.b64decode,
    "$complex": lambda parts: complex(*map(float, parts)),
    "$dtype": lambda name: getattr(torch, name),
    "$device": torch.device,
}

CONTAINERS: dict[str, Callable[[Json, int], object]] = {
    "$tuple": lambda inner, depth: tuple(decoded(item, depth + 1) for item in _list(inner)),
    "$dict": _decoded_dict,
}
