"""The site is built once, without a warning and without a network, and has every public name, page and picture."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import DOCS
from test_docstrings import documented_objects

pytestmark = pytest.mark.soak  # `make docs` builds it too, and a warning is an error there

pytest.importorskip("sphinx", reason="pip install -e '.[docs]'")
pytest.importorskip("furo", reason="pip install -e '.[docs]'")

ONLY_BY_PATH = {"gridwise.comm.transport.Transport", "gridwise.nn.primitive.Primitive"}
"""Documented names in rooms that have no page: for those who extend the library (docs/extending.md)."""

BUILD = """
import socket, sys

def refuse(*args, **kwargs):
    raise OSError("the site is built without a network")

socket.socket.connect = refuse
socket.getaddrinfo = refuse
from sphinx.cmd.build import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        str(folder / "doctrees"),
        str(DOCS),
        str(folder / "html"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def inventory(site: Path) -> set[str]:
    """The names of objects of Python that the site documents."""
    raw = (site / "objects.inv").read_bytes()
    body = zlib.decompress(raw.split(b"\n", 4)[4]).decode()
    return {line.split()[0] for line in body.splitlines() if " py:" in line}


def test_every_public_name_is_in_the_reference(site):
    sys.path.insert(0, str(DOCS))
    try:
        import api_pages
    finally:
        sys.path.remove(str(DOCS))
    shown = {f"{page.package}.{name}" for page in api_pages.PAGES for name in api_pages.names_of(page)}
    assert len(shown) > 230
    assert sorted(shown - inventory(site)) == []
    objects = {id(thing) for page in api_pages.PAGES for thing in api_pages.things_of(page).values()}
    missing = {name for name, thing in documented_objects().items() if id(thing) not in objects}
    assert sorted(missing) == sorted(ONLY_BY_PATH)


def test_every_page_is_built_and_can_be_reached(site):
    pages = {path.stem for path in DOCS.glob("*.md")}
    start = (site / "index.html").read_text(encoding="utf-8")
    for page in pages - {"index"}:
        assert (site / f"{page}.html").exists(), page
        assert f'href="{page}.html"' in start, f"{page} is not in the navigation"


class Links(HTMLParser):
    """Collects what a page loads and links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img") and given.get("src"):
            self.loaded.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(str(given["href"]))
        if tag == "a" and given.get("href"):
            self.linked.append(str(given["href"]))


def links_of(page: Path) -> Links:
    parser = Links()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_a_reader_needs_no_network(site):
    for page in site.rglob("*.html"):
        away = [link for link in links_of(page).loaded if re.match(r"(https?:)?//", link)]
        assert away == [], page.name
    assert (site / "searchindex.js").exists()


def test_links_and_pictures_lead_to_files_and_anchors(site):
    anchors: dict[Path, set[str]] = {}
    broken = []
    for page in site.rglob("*.html"):
        found = links_of(page)
        for link in found.linked + found.loaded:
            if re.match(r"[a-z]+:", link) or link.startswith("//"):
                continue
            file, _, anchor = link.partition("#")
            target = (page.parent / file.partition("?")[0]).resolve() if file else page
            if not target.exists():
                broken.append(f"{page.name}: {link}")
            elif anchor and target.suffix == ".html":
                if target not in anchors:
                    anchors[target] = set(re.findall(r'id="([^"]+)"', target.read_text(encoding="utf-8")))
                if anchor not in anchors[target]:
                    broken.append(f"{page.name}: {link}")
    assert sorted(set(broken)) == []


def test_the_search_knows_the_words_of_a_question(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    for word in ("halo", "slurm", "checkpoint", "check_replica", "repartit"):
        assert word in index.lower(), word


def test_the_network_is_really_refused():
    program = BUILD.replace("from sphinx.cmd.build import main", "").replace("sys.exit(main(sys.argv[1:]))", "")
    program += "\nsocket.create_connection(('127.0.0.1', 9))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "without a network" in done.stderr
    assert socket.socket.connect.__name__ == "connect"
