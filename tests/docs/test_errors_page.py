"""The page on errors has a place for every class, which a traceback names and the message does not."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import traceback

import pytest
from pages import ROOT, text_of

from gridwise import errors
from gridwise.errors import GridwiseError, PartitionError
from gridwise.models.rules import NoRule

CLASSES = [thing for thing in vars(errors).values() if inspect.isclass(thing) and thing.__module__ == errors.__name__]
HEADINGS = re.findall(r"^## (\w+)$", text_of("errors"), re.MULTILINE)


def test_the_page_has_every_class_in_the_order_of_the_module_bases_first():
    assert sorted(HEADINGS) == sorted(kind.__name__ for kind in CLASSES)
    for kind in CLASSES:
        bases = [base.__name__ for base in kind.__bases__ if base in CLASSES]
        assert all(HEADINGS.index(base) < HEADINGS.index(kind.__name__) for base in bases)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if issubclass(kind, GridwiseError)])
def test_an_error_names_its_place(kind):
    file, _, anchor = kind.page.partition("#")
    assert (ROOT / file).name == "errors.md"
    assert (ROOT / file).exists()
    assert anchor in [heading.lower() for heading in HEADINGS]
    assert anchor == kind.__name__.lower()


def shown(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def test_the_place_stands_below_the_message_and_is_no_part_of_it():
    error = PartitionError("asked.", ["worker 1: what it has"], "do this.")
    assert str(error) == "asked.\n  worker 1: what it has\n  fix: do this."
    assert shown(error)[-2:] == ["  fix: do this.", "  about it: docs/errors.md#partitionerror"]


def test_it_stands_there_once_however_an_error_travels():
    error = errors.WorkerDied("worker 3 has died", (3,))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert "\n".join(shown(again)).count("about it:") == 1


def test_an_error_of_another_room_is_of_the_kind_it_derives_from():
    assert NoRule.page == errors.UnsupportedError.page


@pytest.mark.parametrize(
    ("kind", "also"), re.findall(r"^\| [^|]+ \| `(\w+)`.* \| `(\w+)` \|$", text_of("errors"), re.MULTILINE)
)
def test_what_the_table_says_an_error_is_too(kind, also):
    found = getattr(errors, kind)
    assert also in [base.__name__ for base in found.__mro__[1:]]
