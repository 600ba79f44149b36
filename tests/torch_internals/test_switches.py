"""Switches do what torch's own contexts do, and are what a recorded graph has as nodes."""

from __future__ import annotations

import torch

from gridwise.torch_internals.switches import SWITCHES, enter_autocast, exit_autocast, set_grad_enabled
from gridwise.torch_internals.tracer import make_fx


def test_they_switch() -> None:
    set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    set_grad_enabled(True)
    assert torch.is_grad_enabled()
    entered = enter_autocast("cpu", torch.bfloat16, True, True)
    assert torch.is_autocast_enabled("cpu")
    exit_autocast(entered)
    assert not torch.is_autocast_enabled("cpu")


def test_they_are_the_nodes_of_a_graph() -> None:
    def switching(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return x + 1

    graph = make_fx(switching, pre_dispatch=True)(torch.ones(2)).graph
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert [target for target in targets if target in SWITCHES] == [
        set_grad_enabled,
        enter_autocast,
        exit_autocast,
        set_grad_enabled,
    ]
