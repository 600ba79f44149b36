"""The notebooks run from top to bottom in a kernel of their own, and were saved with what they show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SHORT = "quick_start"
SECONDS = 240


def run(path: Path, folder: Path) -> Any:
    program, target = Path(__file__).with_name("run_notebook.py"), folder / path.name
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(folder / "ipython")}
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = [sys.executable, str(program), str(path), str(target), str(SECONDS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(target.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What a notebook is after it was run; it runs when it is first asked for."""
    pytest.importorskip("nbclient", reason="pip install -e '.[docs]'")
    paths = {path.stem: path for path in NOTEBOOKS}
    return cache(lambda name: run(paths[name], tmp_path_factory.mktemp(name)))


def outputs(notebook: Any, kind: str) -> list[str]:
    """What cells have shown in a format, by its MIME type."""
    return [
        "".join(output["data"][kind])
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if kind in output.get("data", {})
    ]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == SHORT else pytest.mark.soak) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_shows_what_was_saved_with_it(path, executed):
    saved = json.loads(path.read_text(encoding="utf-8"))
    fresh = executed(path.stem)
    for kind in ("image/png", "text/html"):
        assert len(outputs(fresh, kind)) == len(outputs(saved, kind))
    assert outputs(saved, "image/png"), "a notebook without a picture"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_saved_after_a_run_from_top_to_bottom(path):
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])


def test_there_are_three_and_the_site_has_them():
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 3
    assert all(path.name in page for path in NOTEBOOKS)


def test_tables_appear_once_and_worker_0_reports_its_progress(executed):
    notebook = executed(SHORT)
    tables = [page for page in outputs(notebook, "text/html") if "<table" in page]
    assert sum("one training step" in page for page in tables) == 1
    assert sum("parameters" in page and "total" in page for page in tables) == 1
    streams = "".join(
        "".join(output["text"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if output["output_type"] == "stream"
    )
    assert streams.count("12/12") == 2, "of the kernel itself, and of worker 0 of those that it has launched"
