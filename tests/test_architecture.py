"""The map in ARCHITECTURE.md and the tree tell the same."""

from __future__ import annotations

import re
from pathlib import Path

import gridwise

PACKAGE = Path(str(gridwise.__file__)).parent
MAP = Path(__file__).parents[1] / "ARCHITECTURE.md"

REPLACED = {"models": "nn/conversion"}
"""Rooms that take the place of another: until the new one is in the tree, and as long as the old one is, both are mapped."""


def rooms_in_the_tree() -> set[str]:
    """Every folder of modules, by its path in the package."""
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    return folders - {"."}


def rooms_on_the_map() -> list[str]:
    """Every room in the first column of the table."""
    rows = re.findall(r"^\| (`.*?) \|", MAP.read_text(), flags=re.MULTILINE)
    return [room.rstrip("/") for row in rows for room in re.findall(r"`(.*?)`", row)]


def is_replaced(path: str) -> bool:
    """Whether a path is of a room that is on its way in, or out."""
    in_place = {name: (PACKAGE / name).exists() for pair in REPLACED.items() for name in pair}
    for new, old in REPLACED.items():
        if path.startswith(f"{new}/") or path == new:
            return not in_place[new] and in_place[old]
        if path == old:
            return in_place[new] and not in_place[old]
    return False


def test_every_room_is_on_the_map_and_every_room_on_the_map_exists() -> None:
    mapped, rooms = rooms_on_the_map(), rooms_in_the_tree()
    assert len(mapped) == len(set(mapped)), "a room is on the map twice"
    assert sorted(rooms - set(mapped)) == [], "rooms that are not on the map"
    assert sorted(room for room in set(mapped) - rooms if not is_replaced(room)) == [], "rooms that are only on the map"


def test_files_of_the_walks_exist() -> None:
    files = re.findall(r"`([\w/]+/\w+\.py)`", MAP.read_text())
    assert len(files) > 30
    root = MAP.parent
    missing = [file for file in files if not (PACKAGE / file).exists() and not (root / file).exists()]
    assert [file for file in missing if not is_replaced(file)] == []


def test_rooms_are_small_enough_to_look_through() -> None:
    stays = rooms_in_the_tree() - set(REPLACED.values())
    counts = {room: len(list((PACKAGE / room).glob("*.py"))) for room in stays}
    assert {room: count for room, count in counts.items() if count > 25} == {}
