"""numpydoc's validation of the docstring of every documented name."""

from __future__ import annotations

import importlib
import inspect
from importlib import metadata
from pathlib import Path
from typing import Any

from numpydoc.validate import validate

from .findings import Finding
from .results import Result, summarised

VERSION = metadata.version("numpydoc")
NAMES = Path(__file__).parents[1] / "tests" / "documented_names.txt"
STYLE = {
    "GL01": "text begins on the line of the quotes",
    "GL02": "docstrings of one line close on it",
    "GL06": "layers have a section Shape, which the site knows",
    "GL07": "sections in another order",
    "GL08": "checked by our own test, where a docstring is due",
    "ES01": "no extended summary where one sentence says it",
    "EX01": "checked by our own test, where an example is due",
    "SA01": "no section See Also",
    "SS02": "a summary may begin with a name in code",
    "SS03": "and end without a period",
    "SS05": "it says what the caller gets, not what the function does",
    "SS06": "it may take two lines",
    "PR04": "types live in annotations",
    "PR05": "and so do not end what stands in their place",
    "PR06": "types live in annotations",
    "PR07": "a parameter whose annotation says all needs no description",
    "PR08": "descriptions begin in lower case",
    "PR09": "and end without a period",
    "PR10": "several parameters in one line of prose",
    "RT01": "the first line says what is returned",
    "RT02": "types live in annotations",
    "RT03": "the first line says what is returned",
    "RT04": "descriptions begin in lower case",
    "RT05": "and end without a period",
    "YD01": "the first line says what is yielded",
}
"""Checks of a style that is not ours, with why; all others count."""
TOGETHER = {"PR01", "PR02"}
"""Parameters that are missing in the docstring, or only there: described together ("as in torch", "..."), mostly."""
ABOUT = (
    "`numpydoc.validate` of the docstring of every documented name that is a class or a function of Gridwise. Left out are "
    f"{len(STYLE)} checks of style that these docstrings do not follow (conformance/docstrings.py says which, and why). "
    "Refused: parameters are described together, or as torch's, so that it misses their names."
)


def findings() -> list[Finding]:
    """What the validation says of each name."""
    found = []
    for line in NAMES.read_text().splitlines():
        name, _, comment = line.partition("#")
        name = name.strip()
        if not name or "warns" in comment:
            continue
        thing = reached(name)
        is_ours = getattr(thing, "__module__", "").startswith("gridwise") and (
            inspect.isclass(thing) or inspect.isroutine(thing)
        )
        if not is_ours or not inspect.getdoc(thing):
            found.append(Finding(name, name, "inapplicable"))
            continue
        errors = [(code, text) for code, text in validate(name)["errors"] if code not in STYLE]
        text = "; ".join(f"{code} {text}" for code, text in errors)
        if {code for code, _ in errors} <= TOGETHER and errors:
            found.append(
                Finding(name, name, "refused", text="PR01, PR02: parameters that are not described one by one")
            )
        else:
            found.append(Finding(name, name, "wrong" if errors else "equal", text=text))
    return found


def reached(name: str) -> Any:
    """What a dotted name leads to."""
    home, _, leaf = name.rpartition(".")
    thing = getattr(importlib.import_module(home), leaf, None) if home else None
    return importlib.import_module(name) if thing is None else thing


def run(fraction: float, seed: int, kept: Path) -> Result:
    """The suite, for conformance.run; always all of it."""
    result = Result("docstrings", "numpydoc's validation of docstrings", f"numpydoc {VERSION}", ABOUT, "names")
    return summarised(result, findings())
