"""A checkpoint under other names: for a model whose parts have been renamed, or a part of it that goes elsewhere.

    rename={"model/encoder": "model/backbone", "model/head": None}

    model/encoder.0.weight                 becomes   model/backbone.0.weight
    optim/state/encoder.0.weight/exp_avg   becomes   optim/state/backbone.0.weight/exp_avg
    model/head.weight                      is left out

A name stands for itself and for what is below it, up to a `/` or a `.`. Optimisers follow their parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import CheckpointMismatch
from ..format.manifest import Manifest
from ..format.values import joined, unescaped

Rename = Mapping[str, str | None] | Callable[[str], str | None]
"""New names by old ones, or a function of a key; None leaves it out."""


def renamed(manifest: Manifest, rename: Rename) -> Manifest:
    """The same tensors and values under their new names."""
    new = _new_names([*manifest.tensors, *manifest.values], rename)
    values = dict(manifest.values)
    parameters = _new_parameters(manifest, new)
    for optimiser in _optimisers(manifest):
        _follow(optimiser, parameters, new, values)
    _check_twins(new)
    return dataclasses.replace(
        manifest,
        tensors={at: tensor for key, tensor in manifest.tensors.items() if (at := new[key]) is not None},
        values={at: value for key, value in values.items() if (at := new[key]) is not None},
        per_worker={at: n for key, n in manifest.per_worker.items() if (at := _place(key, rename)) is not None},
        tied={},
    )


def _new_names(keys: list[str], rename: Rename) -> dict[str, str | None]:
    if callable(rename):
        return {key: rename(key) for key in keys}
    unused = [old for old in rename if not any(_begins(key, old) for key in keys)]
    if unused:
        raise CheckpointMismatch(
            f"`rename` has {', '.join(map(repr, unused[:5]))}, which the checkpoint does not have.",
            fix="`gridwise checkpoint show` lists its names.",
        )
    return {key: _place(key, rename) for key in keys}


def _place(key: str, rename: Rename) -> str | None:
    """The new name of a key: the longest of the old names that it begins with decides."""
    if callable(rename):
        return rename(key)
    old = max((old for old in rename if _begins(key, old)), key=len, default=None)
    if old is None:
        return key
    new = rename[old]
    return None if new is None else new + key[len(old) :]


def _begins(key: str, old: str) -> bool:
    return key == old or (key.startswith(old) and (old[-1:] in ("/", ".") or key[len(old)] in "/."))


def _new_parameters(manifest: Manifest, new: Mapping[str, str | None]) -> dict[str, str | None]:
    """The new names of parameters, as optimisers have them: within their module, or with its key before them."""
    found: dict[str, set[str | None]] = {}
    for key in manifest.tensors:
        for name, now in zip(_names(key), (None, None) if new[key] is None else _names(new[key]), strict=True):
            found.setdefault(name, set()).add(now)
    return {name: now for name, (now, *others) in found.items() if now != name and not others}


def _names(key: str | None) -> tuple[str, str]:
    """What an optimiser may call a parameter that is stored under this key."""
    above, _, last = str(key).rpartition("/")
    name = str(unescaped(last))
    return name, f"{above.replace('/', '.')}.{name}"


def _optimisers(manifest: Manifest) -> list[str]:
    """The keys under which optimisers are stored."""
    ending = "groups/#0/params"
    found = [key.removesuffix(ending).rstrip("/") for key in manifest.values if f"/{key}".endswith(f"/{ending}")]
    return [key for key in found if joined(key, "kind") in manifest.values]


def _follow(
    optimiser: str, parameters: Mapping[str, str | None], new: dict[str, str | None], values: dict[str, Any]
) -> None:
    """Rename the parameters of an optimiser, in its groups and in its state, unless `rename` has named that itself."""
    for key, at in new.items():
        below = key[len(optimiser) :].lstrip("/") if key.startswith(optimiser) else ""
        part, _, rest = below.partition("/")
        if part == "groups" and rest.endswith("/params") and isinstance(values.get(key), list):
            now = [parameters.get(name, name) for name in values[key]]
            values[key] = [name for name in now if name is not None]
        elif part == "state" and at is not None and at.endswith(below):
            name, _, rest = rest.partition("/")
            followed = parameters.get(str(unescaped(name)), "")
            if followed is None:
                new[key] = None
            elif followed:
                above = at.removesuffix(below) + joined("state", followed)
                new[key] = f"{above}/{rest}" if rest else above


def _check_twins(new: Mapping[str, str | None]) -> None:
    seen: dict[str, str] = {}
    for key, at in new.items():
        if at is not None and seen.setdefault(at, key) != key:
            raise CheckpointMismatch(f"`rename` gives {seen[at]!r} and {key!r} one name, {at!r}.")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What a load with ``strict=False`` has left out.

    Parameters
    ----------
    into : the state that was filled
    missing : names in `into` that the checkpoint does not have, which stay as they are; a name stands for all below it
    left_out : names in the checkpoint that `into` does not have

    Examples
    --------
    >>> report = checkpoint.load(path, {"model": model, "epoch": 3}, strict=False)
    >>> report.missing
    ('epoch',)
    """

    into: Any
    missing: tuple[str, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        lines = ["left as it was, not in the checkpoint: " + (", ".join(self.missing) or "nothing")]
        return "\n".join([*lines, "in the checkpoint, not in `into`: " + (", ".join(self.left_out) or "nothing")])

    def __repr__(self) -> str:
        return f"<LoadReport: {len(self.missing)} missing, {len(self.left_out)} left out>"
