"""How many files a call enters (tools/trace_calls.py) does not grow."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import gridwise
from gridwise.testing import workers

TOOL = Path(__file__).parents[1] / "tools" / "trace_calls.py"
MOST = {
    "convolution, forward": 16,
    "convolution, backward": 13,
    "parameter, save": 29,
    "parameter, load": 33,
    "innovation, a step": 31,
    "model, forward": 31,
    "model, backward": 14,
}


@workers(2, transports=("mpi",))
def test_calls_enter_no_more_files(tmp_path):
    spec = importlib.util.spec_from_file_location("trace_calls", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = sys.modules["trace_calls"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    walks = {walk.name: walk for walk in tool.every_walk(str(tmp_path))}
    assert walks.keys() >= MOST.keys()
    if gridwise.world().rank == 0:
        more = {name: walks[name].files for name, most in MOST.items() if len(walks[name].files) > most}
        assert not more
