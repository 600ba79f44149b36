"""The compiler around a call, without importing it, and a graph as machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback, set_eval_frame
from torch.fx import GraphModule

Compiler = Any
"""What compiles the functions called in this thread: None if nothing does, False if they are run as they are."""


def is_compiling_calls() -> bool:
    """Whether functions called in this thread are compiled, or run as parts of compiled ones."""
    return get_eval_frame_callback() is not None


@contextmanager
def compiling(by: Compiler) -> Iterator[Compiler]:
    """Let `by` compile what is called in the body; gives the compiler from before."""
    before = set_eval_frame(by)
    try:
        yield before
    finally:
        set_eval_frame(before)


def machine_code(graph: GraphModule, inputs: Sequence[torch.Tensor], options: dict[str, Any]) -> Callable[..., Any]:
    """A graph of operators on tensors like these, compiled; raises what the tool chain raises."""
    return torch._inductor.compile(graph, list(inputs), options=options)
