"""Write the pages of the API reference: every public name of every package, so that none can be forgotten.

A page is a table of its names and then each of them with its docstring. What is public is what a package's `__init__` imports.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Page:
    """One page: the names of a package that it takes, and whether their methods are shown."""

    file: str
    title: str
    package: str
    takes: Callable[[str], bool] = lambda name: True
    methods: bool = True


def _is_layer(name: str) -> bool:
    return name.startswith("Distributed") and name != "DistributedModel"


PAGES = (
    Page("gridwise", "gridwise", "gridwise"),
    Page("grid", "gridwise.grid: the geometry", "gridwise.grid"),
    Page(
        "primitives", "gridwise.nn: primitives and parameters", "gridwise.nn", lambda name: not _is_layer(name), False
    ),
    Page("layers", "gridwise.nn: layers", "gridwise.nn", _is_layer, False),
    Page("functional", "gridwise.nn.functional", "gridwise.nn.functional"),
    Page("clipping", "gridwise.nn.utils: clipping", "gridwise.nn.utils"),
    Page("mixins", "gridwise.nn.mixins: index arithmetic", "gridwise.nn.mixins"),
    Page("fake", "gridwise.fake", "gridwise.fake"),
    Page("deferred_init", "gridwise.deferred_init", "gridwise.deferred_init"),
    Page("checkpoint", "gridwise.checkpoint", "gridwise.checkpoint"),
    Page("data", "gridwise.data", "gridwise.data"),
    Page("optim", "gridwise.optim", "gridwise.optim", methods=False),
    Page("planning", "gridwise.planning", "gridwise.planning"),
    Page("tagi", "gridwise.tagi: estimators and helpers", "gridwise.tagi"),
    Page("tagi_nn", "gridwise.tagi.nn: layers and networks", "gridwise.tagi.nn", methods=False),
    Page("tagi_metric", "gridwise.tagi.metric", "gridwise.tagi.metric"),
    Page("tagi_plots", "gridwise.tagi.plots", "gridwise.tagi.plots"),
    Page("tagi_cuda", "gridwise.tagi.cuda", "gridwise.tagi.cuda"),
    Page("testing", "gridwise.testing", "gridwise.testing"),
    Page("show", "gridwise.show", "gridwise.show"),
    Page("compat", "gridwise_compat: old names for old scripts", "gridwise_compat"),
    Page("errors", "gridwise.errors", "gridwise.errors", methods=False),
)


def names_of(page: Page) -> list[str]:
    """The functions and classes that a page shows, in the order of their package, but for those on a page before it."""
    before = {id(thing) for other in PAGES[: PAGES.index(page)] for thing in things_of(other).values()}
    return [name for name, thing in things_of(page).items() if id(thing) not in before]


def things_of(page: Page) -> dict[str, object]:
    """The functions and classes of its package that a page is about."""
    package = importlib.import_module(page.package)
    return {name: thing for name, thing in vars(package).items() if _belongs(package, name, thing) and page.takes(name)}


def _belongs(package: ModuleType, name: str, thing: object) -> bool:
    if name.startswith("_") or not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return False
    if not (thing.__module__ or "").startswith("gridwise"):
        return False
    is_package = hasattr(package, "__path__")
    return is_package or thing.__module__ == package.__name__


def write(folder: Path) -> None:
    """Make the pages, and leave alone what is there already, so that only what has changed is read again."""
    folder.mkdir(exist_ok=True)
    wanted = {f"{page.file}.rst": "\n".join(_lines(page)) + "\n" for page in PAGES}
    wanted["index.rst"] = "\n".join(_index()) + "\n"
    for old in folder.glob("*.rst"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _index() -> Iterator[str]:
    yield from ("API reference", "=============", "")
    yield from ("Every public name, from its docstring. The examples in them run in the tests.", "")
    yield from (".. toctree::", "   :maxdepth: 1", "", *(f"   {page.file}" for page in PAGES))


def _lines(page: Page) -> Iterator[str]:
    package = importlib.import_module(page.package)
    names = names_of(page)
    yield from (page.title, "=" * len(page.title), "")
    yield from ((package.__doc__ or "").strip().splitlines()[0].replace("`", "``"), "")
    yield from (f".. currentmodule:: {page.package}", "")
    yield from (".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name in names), "")
    for name in names:
        thing = getattr(package, name)
        is_class = inspect.isclass(thing)
        yield from (name, "-" * len(name), "")
        yield f".. {'autoclass' if is_class else 'autofunction'}:: {page.package}.{name}"
        if is_class and page.methods:
            yield "   :members:"
        yield ""
