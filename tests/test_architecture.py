"""The map in ARCHITECTURE.md and the tree tell the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import torch

import gridwise
from gridwise import nn

PACKAGE = Path(str(gridwise.__file__)).parent
MAP = Path(__file__).parents[1] / "ARCHITECTURE.md"


def rooms_in_the_tree() -> set[str]:
    """Every folder of modules, by its path in the package."""
    folders = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    return {"/".join(folder.parts) for folder in folders if folder.parts}


def rooms_on_the_map() -> list[str]:
    """Every room in the first column of the table."""
    rows = re.findall(r"^\| (`.*?) \|", MAP.read_text(), flags=re.MULTILINE)
    return [room.rstrip("/") for row in rows for room in re.findall(r"`(.*?)`", row)]


def test_every_room_is_on_the_map_and_every_room_on_the_map_exists() -> None:
    mapped, rooms = rooms_on_the_map(), rooms_in_the_tree()
    assert len(mapped) == len(set(mapped)), "a room is on the map twice"
    assert sorted(rooms - set(mapped)) == [], "rooms that are not on the map"
    assert sorted(set(mapped) - rooms) == [], "rooms that are only on the map"


def test_files_of_the_walks_exist() -> None:
    files = re.findall(r"`([\w/]+/\w+\.py)`", MAP.read_text())
    assert len(files) > 30
    root = MAP.parent
    assert [file for file in files if not (PACKAGE / file).exists() and not (root / file).exists()] == []


def test_rooms_are_small_enough_to_look_through() -> None:
    counts = {room: len(list((PACKAGE / room).glob("*.py"))) for room in rooms_in_the_tree()}
    assert {room: count for room, count in counts.items() if count > 25} == {}


def test_a_class_name_occurs_once() -> None:
    paths = PACKAGE.rglob("*.py")
    names = Counter(
        name for path in paths for name in re.findall(r"^class (\w+)", path.read_text(), flags=re.MULTILINE)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_layers_inherit_from_few_classes() -> None:
    layers = [layer for layer in vars(gridwise.nn).values() if isinstance(layer, type) and issubclass(layer, nn.Module)]
    assert len(layers) > 80
    ours = {layer: [each for each in layer.__mro__ if each.__module__.startswith("gridwise")] for layer in layers}
    assert {layer: classes for layer, classes in ours.items() if len(classes) > 5} == {}


def test_a_layer_starts_with_little_state() -> None:
    assert len([name for name in vars(nn.Module()) if name not in vars(torch.nn.Module())]) <= 7


def test_workers_agree_in_one_place() -> None:
    """`all_max` of a transport combines numbers; decisions are taken by `comm.agreement`."""
    numbers = {"nn/engine/all_max.py", "nn/engine/grid_random.py", "models/checks.py"}
    paths = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "gridwise_compat").rglob("*.py")]
    callers = {str(path.relative_to(PACKAGE.parent)) for path in paths if "transport.all_max(" in path.read_text()}
    outside = {path.removeprefix("gridwise/") for path in callers if not path.startswith("gridwise/comm/")}
    assert outside == numbers
    within = {path for path in callers if path.startswith("gridwise/comm/")}
    assert within == {"gridwise/comm/agreement.py"}


def test_the_map_has_as_many_walks_as_it_says() -> None:
    text = MAP.read_text()
    (said,) = re.findall(r"^## (\w+) walks$", text, flags=re.MULTILINE)
    walks = text.partition(" walks\n")[2].partition("\n## ")[0]
    numbers = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    assert numbers.index(said.lower()) + 1 == len(re.findall(r"^\*\*An? ", walks, flags=re.MULTILINE))
