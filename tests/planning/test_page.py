"""The page of a plan: one file that needs nothing else, and in which no name is more than text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import programs
import pytest

import gridwise
from gridwise.planning.page import as_script, page, save_page
from gridwise.planning.traced import Event, Traced

HOSTILE = (
    "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">&amp;\u2028`${x}`"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1240,1700 --virtual-time-budget=3000"
)


@pytest.fixture(scope="module")
def ranking():
    found = gridwise.plan(programs.UNet(), workers=4, input_shape=(2, 3, 64, 64), machine="epyc-7763-node")
    best = found.best
    times = tuple(replace(row, layer=HOSTILE if row.layer == "first" else row.layer) for row in best.time.layers)
    best = replace(best, model=HOSTILE, time=replace(best.time, layers=times))
    return replace(found, rows=(replace(found.rows[0], plan=best), *found.rows[1:]), advice=(HOSTILE,))


@pytest.fixture(scope="module")
def traced():
    event = Event("compute", HOSTILE, "forward", HOSTILE, 0.0, 1.0)
    return Traced(((event,), (event,)), 1)


def test_it_needs_nothing_else(ranking, traced):
    text = page(ranking, traced)
    without_data = re.sub(r'(?s)<script type="application/json".*?</script>', "", text)
    assert not re.search(r"(src|href)\s*=", without_data)
    assert "http" not in without_data.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert text.count("<script") == 2
    assert text.count("</script>") == 2


def test_no_name_is_more_than_text(ranking, traced):
    text = page(ranking, traced)
    assert "<img" not in text
    assert 'onerror=\\"' in text  # there, as text of the JSON
    found = re.search(r'(?s)<script type="application/json" id="data">(.*?)</script>', text)
    data = json.loads(found[1])
    assert data["model"] == HOSTILE
    assert data["ranking"]["advice"] == [HOSTILE]
    assert json.loads(as_script(HOSTILE)) == HOSTILE
    assert not set("<>&\u2028") & set(as_script(HOSTILE))


def test_it_has_all_of_the_plan(ranking):
    data = json.loads(re.search(r'(?s)id="data">(.*?)</script>', page(ranking))[1])
    plan = ranking.best
    assert [worker["memory"] for worker in data["workers"]] == [worker.memory for worker in plan.workers]
    assert max(moment[2] for moment in data["curve"]["moments"]) == max(worker.memory for worker in plan.workers)
    sent = [plan.ledger.bytes_sent(rank, "message") for rank in range(4)]
    assert list(map(sum, data["matrix"]["rows"])) == sent
    assert len(data["ranking"]["rows"]) == len(ranking.rows)
    assert {"second", "up"} <= {layer["name"] for layer in data["layers"]}


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_browser_shows_it(ranking, traced, tmp_path):
    """Click on a layer, and read what the page has become; nothing hostile has run."""
    path = tmp_path / "plan.html"
    save_page(path, ranking, traced)
    names = [
        layer["name"] for layer in json.loads(re.search(r'(?s)id="data">(.*?)</script>', path.read_text())[1])["layers"]
    ]
    click = f"<script>document.querySelector('[data-layer=\"{names.index('second')}\"]').click()</script></body>"
    path.write_text(path.read_text().replace("</body>", click))
    shown = _browser(path, tmp_path, "--dump-dom")
    assert 'data-ready="yes"' in shown
    assert "<title>A plan of Gridwise</title>" in shown
    assert re.search(r'<h2 id="layer-name">second</h2>', shown)
    assert "Sent by worker" in shown
    assert "&lt;img src=x" in shown
    assert "<img" not in shown
    assert shown.count("<circle") == 1  # the peak of the memory
    assert len(re.findall(r"<title>worker \d+ to \d+: ", shown)) == 16


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_picture_of_it(ranking, tmp_path):
    path = tmp_path / "plan.html"
    save_page(path, ranking)
    _browser(path, tmp_path, f"--screenshot={tmp_path / 'plan.png'}")
    assert (tmp_path / "plan.png").stat().st_size > 20_000


def _browser(path: Path, folder: Path, *arguments: str) -> str:
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", *arguments, path.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return answer.stdout
