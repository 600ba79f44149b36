"""`gridwise plan`, `gridwise doctor --calibrate` and `gridwise run --trace`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gridwise.cli import app
from gridwise.costs.machine import read_machine

MODELS = """
import torch

def small():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU())

nothing = 3

def other():
    return 3

class Late(torch.nn.Module):
    def forward(self, x):
        import planned_later
        return planned_later.double(x)

def late():
    import planned_later
    return Late()

def broken():
    raise AttributeError("of the factory")
"""


@pytest.fixture
def invoked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "planned_models", raising=False)
    (tmp_path / "planned_models.py").write_text(MODELS)
    monkeypatch.delitem(sys.modules, "planned_later", raising=False)
    (tmp_path / "planned_later.py").write_text("def double(x):\n    return 2 * x\n")
    return lambda *arguments: CliRunner().invoke(app, ["plan", *arguments])


def test_a_grid(invoked, tmp_path):
    done = invoked("planned_models:small", "--input", "1x3x32x32", "--grid", "1x1x2x2", "--html", "plan.html")
    assert done.exit_code == 0, done.output
    assert "1 x 1 x 2 x 2 workers" in done.output
    assert (tmp_path / "plan.html").stat().st_size > 10_000


def test_a_model_may_import_what_lies_beside_it_at_any_time(invoked):
    before = sys.path.copy()
    done = invoked("planned_models:late", "--input", "4x4", "--grid", "1x2")
    assert done.exit_code == 0, done.exception or done.output
    assert sys.path == before


def test_an_error_of_the_factory_is_not_taken_for_its_absence(invoked):
    assert str(invoked("planned_models:broken", "--input", "4x4", "--grid", "1x2").exception) == "of the factory"


def test_a_search(invoked):
    asked = ("planned_models:small", "--input", "2x3x32x32", "-n", "4", "--search", "--machine", "nvidia-a100")
    done = invoked(*asked, "--optimizer", "adamw", "--memory", "1GiB")
    assert done.exit_code == 0, done.output
    assert "is best" in done.output
    done = invoked(*asked, "--memory", "1KiB")
    assert done.exit_code == 1
    assert "No grid fits" in done.output


def test_the_least_number_of_workers_with_enough_memory(invoked):
    done = invoked("planned_models:small", "--input", "2x3x32x32", "--memory", "200KiB")
    assert done.exit_code == 0, done.output
    assert "workers are the least" in done.output


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (["planned_models:small", "--input", "1x3x32x32"], "--memory 40GiB finds the least number"),
        (["planned_models:small", "--input", "1x3", "--grid", "1x1", "-n", "4"], "leave out --grid"),
        (["planned_models:small", "--input", "1x3", "--grid", "1x1", "--search"], "leave out --grid"),
        (["planned_models:small", "--input", "1xx3", "--grid", "1x1"], "is no shape"),
        (["planned_models:absent", "--input", "1x3", "--grid", "1x1"], "cannot be found"),
        (["planned_models", "--input", "1x3", "--grid", "1x1"], "module:function"),
        (["planned_models:other", "--input", "1x3", "--grid", "1x1"], "makes a int"),
        (["planned_models:small", "--input", "1x3", "--grid", "1x1", "--optimizer", "x"], "is none of none, sgd"),
    ],
)
def test_what_is_wrong_is_said(invoked, asked, problem):
    done = invoked(*asked)
    assert done.exit_code == 2
    assert problem in done.output


def test_the_doctor_measures_this_machine(tmp_path):
    done = CliRunner().invoke(app, ["doctor", "--calibrate", "--output", str(tmp_path / "here.toml")])
    assert done.exit_code == 0, done.output
    machine = read_machine(tmp_path / "here.toml")
    assert machine.measured
    assert 1e7 < machine.rate("conv", "float32") < 1e14
    assert 1e7 < machine.memory_bandwidth < 1e13
    assert 1e-7 < machine.inside.latency < 1.0


def test_a_script_is_traced(tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys, gridwise\ngridwise.world().transport.barrier()\nassert sys.argv[1:] == ['a']\n"
    )
    command = [
        sys.executable,
        "-c",
        "from gridwise.cli import main; main()",
        "run",
        "-n",
        "2",
        "--trace",
        "out",
        "script.py",
        "a",
    ]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=120)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"trace.txt", "trace.json", "events.json"}
