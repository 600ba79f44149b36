"""Sphinx's settings: `make docs` builds the site into build/docs. Nothing is fetched, neither now nor by a reader."""

from __future__ import annotations

import sys
from pathlib import Path

from numpydoc.docscrape import NumpyDocString
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import api_pages  # noqa: E402

import gridwise  # noqa: E402

project = "Gridwise"
author = "the Gridwise contributors"
copyright = "the Gridwise contributors"
release = gridwise.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_parser"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

default_role = "code"  # `x` in a docstring is code
autodoc_typehints = "none"  # signatures of layers are long; the Parameters say what is what
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": False}
autosummary_generate = False
toc_object_entries = False  # headings are enough
numpydoc_show_class_members = False
NumpyDocString.sections["Shape"] = []  # of layers: see `shapes_into_notes`
numpydoc_xref_param_type = False
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"Gridwise {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_extra_path = ["assistants"]  # llms.txt at the root of the site
exclude_patterns = ["assistants"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
pygments_style = "tango"
pygments_dark_style = "github-dark"


def setup(app: Sphinx) -> None:
    """The pages of the reference are written from what the packages list."""
    api_pages.write(HERE / "api")
    app.connect("autodoc-process-docstring", shapes_into_notes, priority=100)  # before numpydoc


def shapes_into_notes(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Let the section "Shape" of a layer, which stands before its notes, be their beginning: numpydoc shows no others."""
    if "Shape" in lines:
        if "Notes" in lines:
            del lines[lines.index("Notes") : lines.index("Notes") + 2]
        at = lines.index("Shape")
        lines[at : at + 2] = ["Notes", "-----", "**Shape**", ""]
