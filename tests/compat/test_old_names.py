"""Every documented name of the three libraries is found under its old path, or is on the list of what is not there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

LINES = [line.partition("#") for line in (Path(__file__).parent / "old_names.txt").read_text().splitlines()]
NAMES = {name.strip(): "not there" in comment for name, _, comment in LINES if name.strip()}

pytestmark = [
    pytest.mark.usefixtures("old_names"),
    pytest.mark.filterwarnings("ignore::gridwise_compat.CompatibilityNote", "ignore::DeprecationWarning"),
]


def is_there(name: str) -> bool:
    path = name.split("(")[0].split(".")
    for length in range(len(path), 0, -1):
        try:
            importlib.import_module(".".join(path[:length]))
            break
        except ModuleNotFoundError:
            continue
    try:
        eval(name, {path[0]: importlib.import_module(path[0])})
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize(("library", "least"), [("distdl", 200), ("torchdistx", 20), ("pytagi", 180)])
def test_documented_names_are_found(library: str, least: int) -> None:
    names = [name for name in NAMES if name.startswith(library)]
    assert len(names) >= least
    assert [name for name in names if is_there(name) == NAMES[name]] == []
