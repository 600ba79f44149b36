"""Captured steps: on CUDA as graphs, elsewhere as they are, with the same checks of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured_nets import HandBuilt, Net
from torch import Tensor

import gridwise
from gridwise.errors import MismatchError, PartitionError, UnsupportedError
from gridwise.testing import workers

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def trained(kind: str, optimiser: str, device: str) -> tuple[torch.nn.Module, Callable[[Tensor], Tensor]]:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])
    torch.manual_seed(0)
    model = HandBuilt(P).to(device) if kind == "layers" else gridwise.distribute(Net().to(device), P)
    optimizer: torch.optim.Optimizer
    if optimiser == "Adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=device == "cuda")
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def check_steps(kind: str, optimiser: str, device: str) -> None:
    """Eight captured steps are eight steps: in their losses, in what they leave, and in the random numbers they draw."""
    (model, step), (twin, plain) = trained(kind, optimiser, device), trained(kind, optimiser, device)
    batches = [torch.randn(2, 1, 4 + 3 * gridwise.world().rank, 9).to(device) for _ in range(8)]
    torch.manual_seed(1)
    expected = [plain(x).detach() for x in batches]
    drawn = torch.rand(())
    torch.manual_seed(1)
    captured = gridwise.capture(step)
    losses = [captured(x) for x in batches]
    assert drawn == torch.rand(())
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert not losses[0].requires_grad
    if device == "cpu":
        assert captured.graphs == 0
    else:
        assert captured.graphs == 1 if gridwise.world().size == 1 else captured.graphs > 1


@workers(1, 2)
@pytest.mark.parametrize("kind", ["layers", "model"])
def test_without_cuda_a_step_runs_as_it_is(kind):
    check_steps(kind, "SGD", "cpu")


@on_cuda
@workers(1, 2, 3, transports=("gloo",))
@pytest.mark.parametrize("kind", ["layers", "model"])
@pytest.mark.parametrize("optimiser", ["SGD", "Adam"])
def test_captured_steps_are_steps(kind, optimiser):
    check_steps(kind, optimiser, "cuda")


@on_cuda
@workers(1, 2, transports=("gloo",))
@pytest.mark.parametrize("kind", ["layers", "model"])
def test_each_replay_draws_a_mask_of_its_own(kind):
    P = gridwise.world().create_cartesian_topology_partition([gridwise.world().size, 1])
    drop: Any = gridwise.nn.DistributedDropout(P, 0.5)
    if kind == "model":
        drop = gridwise.distribute(torch.nn.Dropout(0.5), P)
    x = torch.ones(8, 16, device="cuda")
    torch.manual_seed(3)
    expected = [drop(x) for _ in range(5)]
    torch.manual_seed(3)
    captured = gridwise.capture(lambda x: drop(x), warmup=1)
    found = [captured(x) for _ in range(5)]
    assert captured.graphs
    assert all(map(torch.equal, found, expected))
    assert not any(torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])


@on_cuda
@workers(1, transports=("gloo",))
def test_what_cannot_be_captured_is_said():
    captured = gridwise.capture(lambda x: x * x.sum().item(), warmup=1)
    x = torch.ones(2, device="cuda")
    captured(x)
    with pytest.raises(UnsupportedError, match="cannot be captured as a CUDA graph"):
        captured(x)
    assert torch.equal(gridwise.capture(lambda x: x + 1)(x), x + 1)
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.Adam([weight], capturable=False)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    captured = gridwise.capture(step, warmup=1)
    captured(x)
    with pytest.raises(UnsupportedError, match="capturable=True"):
        captured(x)


@on_cuda
@workers(2, transports=("gloo",))
def test_movements_inside_of_a_graph_need_nccl():
    captured = gridwise.capture(lambda x: x, inside=True)
    with pytest.raises(UnsupportedError, match="cannot be part of a CUDA graph"):
        captured(torch.ones(2, device="cuda"))


@workers(1, 2)
def test_inputs_of_another_structure_are_refused_by_all(gridwise_setting):
    last = gridwise.world().size - 1
    rank, device = gridwise.world().rank, "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.ones(2, 3, device=device)
    captured = gridwise.capture(lambda batch, scale: {"y": [batch["x"] * scale]}, warmup=1)
    for _ in range(3):
        assert torch.equal(captured({"x": x}, scale=2)["y"][0], 2 * x)
    others = [
        ({"x": torch.ones(1, 3, device=device)}, 2, r"input 0: float32 \(2, 3\) on \S+, got float32 \(1, 3\)"),
        ({"x": x.double()}, 2, "got float64"),
        ({"z": x}, 2, "another structure"),
        ({"x": x}, 3, "another structure.*3"),
        ({"x": x.clone().requires_grad_()}, 2, "need no gradient"),
    ]
    for batch, scale, words in others:
        with pytest.raises(PartitionError, match=words) as error:  # only the last worker has got another
            captured(batch if rank == last else {"x": x}, scale=scale if rank == last else 2)
        assert "captured step" in str(error.value)
    with torch.no_grad(), pytest.raises(PartitionError, match="autograd on, got it off"):
        captured({"x": x}, scale=2)
    with torch.autocast(device), pytest.raises(PartitionError, match="enter autocast in the step"):
        captured({"x": x}, scale=2)
    assert torch.equal(captured({"x": x + 1}, scale=2)["y"][0], 2 * x + 2)


@workers(2)
def test_a_worker_that_makes_another_step_is_noticed():
    first, second = gridwise.capture(lambda x: x), gridwise.capture(lambda x: x)
    with pytest.raises(MismatchError):
        (first if gridwise.world().rank == 0 else second)(torch.ones(2))


def test_outputs_are_copies_and_nothing_but_tensors():
    x = torch.ones(2)
    captured = gridwise.capture(lambda x: (x, None))
    (y, nothing) = captured(x)
    y.add_(1)
    assert nothing is None
    assert torch.equal(x, torch.ones(2))
    with pytest.raises(UnsupportedError, match=r"returns 2.0, which a replay would return for ever"):
        gridwise.capture(lambda x: float(x.sum()))(x)


def test_a_decorator_with_arguments():
    @gridwise.capture(warmup=2)
    def doubled(x: Tensor) -> Tensor:
        return 2 * x

    assert torch.equal(doubled(torch.ones(2)), torch.full((2,), 2.0))
    assert "without a graph" in repr(doubled)
    with pytest.raises(PartitionError, match="`warmup`"):
        gridwise.capture(lambda x: x, warmup=0)
