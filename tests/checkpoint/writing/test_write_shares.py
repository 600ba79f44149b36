"""What several workers hold of one state: values of each, blocks that move, and differences that must not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew, crew_errors
from torch import nn

from gridwise import checkpoint
from gridwise.checkpoint import PerWorker
from gridwise.errors import CheckpointMismatch
from gridwise.partition import Partition


def test_values_for_each_worker(tmp_path: Path) -> None:
    def state(P: Partition, seed: int) -> dict[str, Any]:
        return {
            "rng": PerWorker(torch.Generator().manual_seed(seed + P.rank)),
            "at": PerWorker({"file": P.rank * seed}),
        }

    crew(3, lambda P: checkpoint.save(tmp_path / "c", state(P, 5), P))

    def loads(P: Partition) -> None:
        found = state(P, 0)
        checkpoint.load(tmp_path / "c", found, P)
        assert found["at"].value == {"file": P.rank * 5}
        expected = torch.Generator().manual_seed(5 + P.rank)
        assert torch.equal(torch.rand(3, generator=found["rng"].value), torch.rand(3, generator=expected))

    crew(3, loads)
    assert [value["file"] for value in checkpoint.load(tmp_path / "c")["at"]] == [0, 5, 10]


@pytest.mark.parametrize("n", [2, 5])
def test_values_for_each_worker_when_there_are_more_or_fewer(tmp_path: Path, n: int) -> None:
    crew(3, lambda P: checkpoint.save(tmp_path / "c", {"at": PerWorker(P.rank * 10)}, P))
    errors = crew_errors(n, lambda P: checkpoint.load(tmp_path / "c", {"at": PerWorker(-1)}, P))
    assert {type(error) for error in errors} == {CheckpointMismatch}
    assert "saved by 3 workers" in str(errors[0])

    def loads(P: Partition) -> tuple[int, int]:
        kept, wrapped = {"at": PerWorker(-1, when_resized="keep")}, {"at": PerWorker(-1, when_resized="wrap")}
        checkpoint.load(tmp_path / "c", kept, P)
        checkpoint.load(tmp_path / "c", wrapped, P)
        return kept["at"].value, wrapped["at"].value

    assert crew(n, loads) == [(-1, 10 * (rank % 3)) for rank in range(n)]
    with pytest.raises(CheckpointMismatch, match="when_resized"):
        PerWorker(1, when_resized="guess")


@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_the_state_of_an_optimiser_moves_with_its_parameter(
    tmp_path: Path, optimiser: type[torch.optim.Optimizer], m: int
) -> None:
    """Three workers, two rows: one of them holds no part of the weight, and its optimiser has no state for it."""
    whole, bias = torch.randn(2, 5), torch.randn(3)
    gradient = torch.randn(2, 5)
    options: dict[str, Any] = {"lr": 0.1} if optimiser is torch.optim.Adam else {"lr": 0.1, "momentum": 0.9}

    def build(P: Partition) -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Module()
        layout = line(P, (2, 5))
        net.register_parameter("weight", split(whole, layout, P.transport.rank))
        net.register_parameter("bias", nn.Parameter(bias.clone()))
        return net, optimiser(net.parameters(), **options)

    def step(P: Partition, net: nn.Module, opt: torch.optim.Optimizer) -> None:
        block = line(P, (2, 5)).block(P.transport.rank)
        net.weight.grad = gradient[block.slices].clone() if block.volume else None
        net.bias.grad = torch.ones(3)
        opt.step()

    def saves(P: Partition) -> None:
        net, opt = build(P)
        step(P, net, opt)
        step(P, net, opt)
        checkpoint.save(tmp_path / "c", {"net": net, "opt": opt}, P)

    def goes_on(P: Partition) -> torch.Tensor:
        net, opt = build(P)
        checkpoint.load(tmp_path / "c", {"net": net, "opt": opt}, P)
        step(P, net, opt)
        return net.weight.detach()

    crew(3, saves)
    reference = nn.Parameter(whole.clone())
    opt = optimiser([reference], **options)
    for _ in range(3):
        reference.grad = gradient.clone()
        opt.step()
    parts = [part for part in crew(m, goes_on) if part.numel()]
    assert torch.equal(torch.cat(parts), reference.detach())


def test_differences_between_workers_are_named(tmp_path: Path) -> None:
    def saving(state: Any) -> list[Exception | None]:
        return crew_errors(3, lambda P: checkpoint.save(tmp_path / "c", state(P), P))

    cases: list[tuple[Any, str]] = [
        (lambda P: {"a": 1, "b": P.rank == 2}, "'b' on worker 2: the value true"),
        (lambda P: {"a": torch.ones(2 + P.rank % 2)}, r"'a' on worker 1: a tensor F32 \[3\] on every worker"),
        (lambda P: {"a": torch.ones(3), "w": torch.full((2,), float(P.rank == 1))}, "'w' is taken to be the same"),
        (lambda P: {"a": 1} if P.rank else {"a": 1, "extra": 2}, "'extra' on workers 1, 2: is missing"),
        (lambda P: {"a": torch.ones(4) if P.rank else object()}, "worker 0: 'a' is a builtins.object"),
    ]
    for state, text in cases:
        errors = saving(state)
        assert len({str(error) for error in errors}) == 1
        with pytest.raises(CheckpointMismatch, match=text):
            raise errors[0]  # type: ignore[misc]
        assert not (tmp_path / "c").exists()


def test_a_replica_that_differs_from_its_original_is_named(tmp_path: Path) -> None:
    def saves(P: Partition) -> None:
        layout = line(P.create_partition_inclusive([0]), (4,))
        whole = torch.arange(4.0) + (P.rank == 2)
        checkpoint.save(tmp_path / "c", {"w": split(whole, layout, P.rank, replica_of=0)}, P)

    errors = crew_errors(3, saves)
    assert "replica of 'w'" in str(errors[1])
    assert "on worker 2" in str(errors[1])
    assert len({str(error) for error in errors}) == 1


def test_a_layout_that_reaches_beyond_the_saving_workers_is_refused(tmp_path: Path) -> None:
    def saves(P: Partition) -> None:
        sub = P.create_partition_inclusive([0, 1])
        checkpoint.save(tmp_path / "c", {"w": split(torch.arange(6.0), line(P, (6,)), P.rank)}, sub)

    errors = crew_errors(3, saves)
    assert errors[2] is None
    assert "hold 4 of 6 elements" in str(errors[0])


def test_some_workers_save_and_others_load(tmp_path: Path) -> None:
    def body(P: Partition) -> None:
        two = P.create_partition_inclusive([2, 0])
        checkpoint.save(tmp_path / "c", {"w": split(torch.arange(5.0), line(two, (5,)), P.rank), "n": 1}, two)
        P.barrier()
        target = {"w": torch.zeros(5), "n": 0}
        checkpoint.load(tmp_path / "c", target, P)
        assert target["n"] == 1
        assert torch.equal(target["w"], torch.arange(5.0))

    crew(3, body)
