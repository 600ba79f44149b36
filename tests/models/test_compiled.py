"""`torch.compile` of models on a grid: what lies between two movements is compiled, once, and nothing is changed by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gridwise
from gridwise.testing import workers


class Net(torch.nn.Module):
    def __init__(self, P: Any = None) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.drop = torch.nn.Dropout(0.2)
        self.last = torch.nn.Conv2d(4, 2, 3, padding=1)
        if P is not None:
            nn = gridwise.nn
            self.first, self.norm = nn.DistributedConv2d(P, 1, 4, 3, padding=1), nn.DistributedBatchNorm2d(P, 4)
            self.drop, self.last = nn.DistributedDropout(P, 0.2), nn.DistributedConv2d(P, 4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        y = self.drop(torch.nn.functional.gelu(y) * 2 + y.sigmoid())
        return self.last(y).tanh().square() + 1


def made(kind: str) -> torch.nn.Module:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])
    torch.manual_seed(0)
    return Net(P) if kind == "layers" else gridwise.distribute(Net(), P)


def gradients(model: torch.nn.Module, called: Any, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    y = called(x)
    y.square().mean().backward()
    return [y.detach(), *[p.grad for p in model.parameters() if p.grad is not None]]


@workers(1, 2)
@pytest.mark.parametrize("kind", ["layers", "model"])
def test_a_compiled_model_is_the_model(kind):
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(sum(node.op in ("call_function", "call_method") for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    model, twin = made(kind), made(kind)
    compiled = torch.compile(model, backend=backend)
    counts = []
    for step in range(5):
        x = torch.randn(2, 1, 4 + gridwise.world().rank, 6)
        torch.manual_seed(step)
        found = gradients(model, compiled, x)
        torch.manual_seed(step)
        torch.testing.assert_close(found, gradients(twin, twin, x))
        counts.append(len(graphs))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert counts[2] == counts[-1]  # nothing is compiled again
    assert sum(graphs) >= 7  # gelu, products, sums, tanh, ...
    if gridwise.world().size == 1 and kind == "model":
        assert len(graphs) == 2  # before and after dropout, whose random key is drawn on the host


@workers(2)
def test_a_model_may_compile_itself_and_modes_may_change():
    model, twin = made("model"), made("model")
    model.compile(backend="eager")
    x = torch.randn(2, 1, 4, 6)
    for mode in (True, False, True):
        for each in (model, twin):
            each.train(mode)
        for step in range(3):
            torch.manual_seed(step)
            found = gradients(model, model, x)
            torch.manual_seed(step)
            torch.testing.assert_close(found, gradients(twin, twin, x))
