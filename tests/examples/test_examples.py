"""The examples run as they stand, as a reader would start them; the long ones in `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ("picture_on_a_grid", "deferred_init")  # the longest first
ZOO = ("vae_decode", "unet3d")
"""Those that need models of other libraries: pip install -e '.[zoo]'."""
LONG = (
    "checkpoint",
    "fourier_operator",
    "larger_than_memory",
    "plan",
    "seams",
    "volume_seams",
    "volume_training",
    "tagi_compare",
    "tagi_ddp",
    "tagi_digits",
    "tagi_noise",
    "tagi_regression",
    "tagi_series",
)


ARGUMENTS = {"larger_than_memory": ("--size", "64"), "volume_seams": ("96", "20")}
"""Of those that take minutes without."""


def run(name: str, folder: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *ARGUMENTS.get(name, ())]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future]]:
    """The short ones that were asked for, two at a time: most of them use one core."""
    asked = {item.callspec.params["name"] for item in request.session.items if item.name.startswith("test_it_runs[")}
    with ThreadPoolExecutor(2) as two:
        yield {name: two.submit(run, name, tmp_path_factory.mktemp(name)) for name in SHORT if name in asked}


@pytest.mark.parametrize("name", SHORT)
def test_it_runs(name, running):
    running[name].result()


@pytest.mark.soak
@pytest.mark.parametrize("name", LONG)
def test_it_runs_for_longer(name, tmp_path):
    run(name, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", ZOO)
def test_models_of_other_libraries_run(name, tmp_path):
    pytest.importorskip("monai" if name == "unet3d" else "diffusers", reason="pip install -e '.[zoo]'")
    run(name, tmp_path)


def test_every_example_is_run_and_short_enough_to_read():
    found = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert set(found) == {*SHORT, *LONG, *ZOO, "lenet_mnist"}
    assert all(lines < 120 for lines in found.values()), found
