"""The page of a plan: one file that needs nothing else, and in which no name is more than text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import programs
import pytest
import torch

import gridwise
from gridwise.planning.page import as_script, page, save_page
from gridwise.planning.tracing.traced import Event, Traced

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
    found = gridwise.plan(programs.UNet(), workers=4, input_shape=(1, 3, 64, 64), machine="epyc-7763-node")
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
    data = _data(page(ranking))
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
    names = [layer["name"] for layer in _data(path.read_text())["layers"]]
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
    bars = re.findall(r'<span class="bar">(.*?)</span>', shown)
    lengths = [sum(map(float, re.findall(r'<i style="width:([\d.e-]+)px', bar))) for bar in bars]
    assert max(lengths) == pytest.approx(130)  # compute and communication, of which waiting is a part
    assert len(re.findall(r"<title>worker \d+ to \d+: ", shown)) == 16


def test_it_has_the_halos_of_every_layer_with_a_window():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    plan = gridwise.plan(model, (1, 1, 6, 4), (1, 3, 48, 32))
    assert len(plan.workers) == 9
    halos = {layer["name"]: layer["halo"] for layer in _data(page(plan))["layers"]}
    assert halos["1"] is None
    assert halos["0"]["shape"] == [1, 3, 48, 32]
    assert halos["0"]["cuts"][2:] == [list(range(0, 49, 8)), list(range(0, 33, 8))]
    assert len(halos["0"]["widths"]) == 9
    for rank, widths in halos["0"]["widths"].items():
        row, column = divmod(int(rank), 4)
        assert widths == [[0, 0], [0, 0], [2 * (row > 0), 2 * (row < 5)], [2 * (column > 0), 2 * (column < 3)]]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_click_on_a_block_draws_its_halo(tmp_path):
    """Of a worker that was not run too: one stands for it. The third axis of the grid is walked by buttons."""
    path = tmp_path / "plan.html"
    plan = gridwise.plan(torch.nn.Conv3d(1, 2, 3, padding=1), (1, 1, 3, 4, 5), (1, 1, 12, 16, 20))
    assert len(plan.workers) == 27
    save_page(path, plan)
    clicks = (
        "document.querySelector('[aria-label=\"block before, dim 2\"]').click();"
        "document.querySelector('[data-block=\"0,0,0,1,3\"]').dispatchEvent(new MouseEvent('click'))"
    )
    path.write_text(path.read_text().replace("</body>", f"<script>{clicks}</script></body>"))
    shown = _browser(path, tmp_path, "--dump-dom")
    words = "has [0:1, 0:1, 0:4, 4:8, 12:16] of the input 1 x 1 x 12 x 16 x 20"
    assert f"worker 8 at (0, 0, 0, 1, 3) {words}" in shown
    needs = "1 after, dim 2; 1 before and 1 after, dim 3; 1 before and 1 after, dim 4"
    assert f"rows that it needs besides its block: {needs}" in shown
    assert len(re.findall(r"<rect[^>]* data-block=", shown)) == 20
    own, halo = (
        {k: float(v) for k, v in re.findall(r' (x|y|width|height)="([\d.]+)"', tag)}
        for tag in (re.search(rf'<rect[^>]*class="{kind}"[^>]*>', shown)[0] for kind in ("own", "halo"))
    )
    row = own["width"] / 4
    assert halo["x"] == pytest.approx(own["x"] - row)
    assert halo["y"] == pytest.approx(own["y"] - row)
    assert halo["width"] == pytest.approx(own["width"] + 2 * row)
    assert halo["height"] == pytest.approx(own["height"] + 2 * row)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_picture_of_it(ranking, tmp_path):
    path = tmp_path / "plan.html"
    save_page(path, ranking)
    _browser(path, tmp_path, f"--screenshot={tmp_path / 'plan.png'}")
    assert (tmp_path / "plan.png").stat().st_size > 20_000


def _data(text: str) -> dict[str, Any]:
    return json.loads(re.search(r'(?s)id="data">(.*?)</script>', text)[1])


def _browser(path: Path, folder: Path, *arguments: str) -> str:
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", *arguments, path.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return answer.stdout
