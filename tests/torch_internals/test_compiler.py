"""The compiler around a call is known without importing it, and can be put around another."""

from __future__ import annotations

import subprocess
import sys
from types import FrameType
from typing import Any

import torch
from torch._dynamo.types import ConvertFrameReturn

from gridwise.torch_internals.compiler import compiling, is_compiling_calls, machine_code
from gridwise.torch_internals.tracer import make_fx

ASKING = """
import sys
from gridwise.torch_internals.compiler import is_compiling_calls
print(is_compiling_calls(), "torch._dynamo" in sys.modules)
"""


def test_asking_imports_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_functions_called_in_the_body_pass_through_the_compiler() -> None:
    seen: list[str] = []

    def compiler(frame: FrameType, *rest: Any) -> Any:
        seen.append(frame.f_code.co_name)
        return ConvertFrameReturn()

    def called_in_the_body() -> int:
        return 3

    assert not is_compiling_calls()
    with compiling(compiler) as before:
        inside = is_compiling_calls()
        result = called_in_the_body()
    assert before is None
    assert inside
    assert result == 3
    assert "called_in_the_body" in seen
    assert not is_compiling_calls()


def test_a_graph_becomes_machine_code() -> None:
    x = torch.ones(3)
    graph = make_fx(lambda x: [x.sin() + 1])(x)
    try:
        run = machine_code(graph, [x], {})
    except Exception as error:  # without a tool chain, an error that callers report
        assert "compil" in str(error).lower()  # noqa: PT017
    else:
        torch.testing.assert_close(run(x)[0], x.sin() + 1)
