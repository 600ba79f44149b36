"""Whole training states: modules, optimisers, schedulers, generators, per-worker values, nested containers."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blocks import line, split
from crew import crew, crew_errors
from torch import nn

from gridwise import checkpoint
from gridwise.checkpoint import PerWorker
from gridwise.errors import CheckpointMismatch, CheckpointNotFound
from gridwise.partition import Partition


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        self.tied = self.body[2].weight
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def get_extra_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def training(optimiser: type[torch.optim.Optimizer], **options: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    net = Net()
    opt = optimiser(net.parameters(), **options)
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [2, 4], gamma=0.5)
    return {"net": net, "opt": opt, "schedule": schedule, "rng": torch.Generator().manual_seed(7), "step": 0}


def train(state: dict[str, Any], steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 4, generator=state["rng"])
        loss = state["net"](x).square().mean()
        state["opt"].zero_grad()
        loss.backward()
        state["opt"].step()
        state["schedule"].step()
        state["net"].count += 1
        state["step"] += 1
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("optimiser", "options"),
    [
        (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
        (torch.optim.AdamW, {"lr": torch.tensor(0.05), "foreach": False}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.RMSprop, {"lr": 0.01, "centered": True}),
        (torch.optim.Adagrad, {"lr": 0.01}),
    ],
    ids=["adam", "adamw", "sgd", "plain-sgd", "rmsprop", "adagrad"],
)
def test_a_resumed_run_is_the_run_that_never_stopped(
    tmp_path: Path, optimiser: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    state = training(optimiser, **options)
    train(state, 3)
    checkpoint.save(tmp_path / "c", state)
    expected = train(state, 4)
    fresh = training(optimiser, **options)
    train(fresh, 1)  # other values, another place in the schedule
    checkpoint.load(tmp_path / "c", fresh)
    assert fresh["step"] == 3
    assert fresh["net"].count == 3
    assert type(fresh["schedule"].milestones) is type(state["schedule"].milestones)
    assert train(fresh, 4) == expected


def test_the_names_are_those_of_the_module(tmp_path: Path) -> None:
    state = training(torch.optim.Adam)
    train(state, 1)
    checkpoint.save(tmp_path / "c", state)
    keys = checkpoint.read_manifest(tmp_path / "c").tensors
    assert "net/body.0.weight" in keys
    assert "opt/state/body.0.weight/exp_avg" in keys


def test_a_module_alone_and_into_a_plain_torch_model(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", nn.Linear(3, 2))
    net = nn.Linear(3, 2)
    checkpoint.load(tmp_path / "c", net)
    assert set(checkpoint.load(tmp_path / "c")) == {"weight", "bias"}
    assert torch.equal(checkpoint.load(tmp_path / "c")["weight"], net.weight)


def test_a_part_of_a_state_can_be_loaded(tmp_path: Path) -> None:
    state = training(torch.optim.Adam)
    train(state, 2)
    checkpoint.save(tmp_path / "c", state)
    net = Net()
    checkpoint.load(tmp_path / "c", {"net": net})
    assert torch.equal(net.tied, state["net"].tied)


def test_nested_containers_come_back(tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(2, 3)
    state = {
        "list": [torch.ones(2), {"deep": (torch.zeros(1), "text")}],
        "plain": [1, [2, {"x": None}]],
        "empty": {},
        "nothing": [],
        7: {"#7": 1, "/": 2},
        "array": array.copy(),
        "number": np.float64(1.5),
        "size": torch.Size([2, 3]),
    }
    checkpoint.save(tmp_path / "c", state)
    found = checkpoint.load(tmp_path / "c")
    assert found["plain"] == state["plain"]
    assert found["empty"] == {}
    assert found["nothing"] == []
    assert found[7] == {"#7": 1, "/": 2}
    assert found["size"] == (2, 3)
    assert torch.equal(found["list"][0], torch.ones(2))
    assert found["list"][1]["deep"][1] == "text"
    into = {"list": [torch.zeros(2), {"deep": (torch.ones(1), None)}], "array": np.zeros((2, 3)), 7: None, "plain": ()}
    target, matrix = into["list"][0], into["array"]
    checkpoint.load(tmp_path / "c", into)
    assert torch.equal(target, torch.ones(2))
    assert np.array_equal(matrix, array)
    assert into["list"][1]["deep"][1] == "text"
    assert into[7] == {"#7": 1, "/": 2}
    assert into["plain"] == [1, [2, {"x": None}]]


def test_non_contiguous_and_odd_tensors_are_filled_in_place(tmp_path: Path) -> None:
    values = {
        "turned": torch.arange(12.0).view(3, 4).t(),
        "strided": torch.arange(20)[::3],
        "half": torch.randn(5).half(),
        "small float": torch.randn(4).to(torch.float8_e4m3fn),
        "wide": torch.tensor([2**60], dtype=torch.uint64),
        "complex": torch.randn(3, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(True),
    }
    checkpoint.save(tmp_path / "c", values)
    into = {key: torch.zeros_like(value) for key, value in values.items()}
    into["turned"] = torch.zeros(4, 3)
    into["strided"] = torch.zeros(14, dtype=torch.int64)[::2]
    checkpoint.load(tmp_path / "c", into)
    for key, value in values.items():
        assert bytes(into[key].contiguous().view(-1).resolve_conj().view(torch.uint8).numpy()) == bytes(
            value.contiguous().view(-1).resolve_conj().view(torch.uint8).numpy()
        ), key


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


def test_errors_say_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, {"net": nn.Linear(3, 2), "step": 1, "list": [torch.ones(1)]})
    before = torch.full((2, 3), 9.0)
    cases: list[tuple[Any, str]] = [
        ({"net": {"weight": before, "other": torch.ones(1)}}, "'net/other' is not in the checkpoint"),
        ({"net": {"weight": torch.ones(3, 2)}}, r"global shape \[2, 3\] in the checkpoint, \[3, 2\]"),
        ({"net": {"weight": torch.ones(2, 3).double()}}, "float32 in the checkpoint, torch.float64"),
        ({"step": torch.ones(1)}, "plain value in the checkpoint"),
        ({"list": [torch.ones(1), torch.ones(1)]}, "2 items in `into`, 1 in the checkpoint"),
        ({"net": nn.Linear(3, 2, bias=False)}, "only in the checkpoint: 'net/bias'"),
        ({"net": nn.Sequential(nn.Linear(3, 2))}, "only in `into`: 'net/0.bias'"),
        ({"net": {"weight": torch.ones(1, 1).expand(2, 3)}}, "expanded"),
        ({"step": PerWorker(1)}, "saved as one value for all"),
        ({"opt": torch.optim.SGD(nn.Linear(1, 1).parameters())}, "belong to no module"),
        (3, "must be a dict"),
    ]
    for into, text in cases:
        with pytest.raises(CheckpointMismatch, match=text):
            checkpoint.load(path, into)
    assert torch.equal(before, torch.full((2, 3), 9.0))
    with pytest.raises(CheckpointNotFound, match="nothing exists there"):
        checkpoint.load(tmp_path / "no", {})
    with pytest.raises(CheckpointNotFound, match=r"no manifest\.json"):
        checkpoint.load(tmp_path, {})


def test_cast_converts(tmp_path: Path) -> None:
    x = torch.randn(40, 30, dtype=torch.float64)
    checkpoint.save(tmp_path / "c", {"x": x})
    into = {"x": torch.zeros(40, 30, dtype=torch.bfloat16)}
    checkpoint.load(tmp_path / "c", into, cast=True)
    assert torch.equal(into["x"], x.bfloat16())


def test_autograd_notices_that_a_saved_tensor_was_overwritten(tmp_path: Path) -> None:
    x = torch.ones(3)
    checkpoint.save(tmp_path / "c", {"x": x})
    y = (x * torch.ones(3, requires_grad=True)).sum()
    checkpoint.load(tmp_path / "c", {"x": x})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_parameters_on_the_meta_device_are_made_only_in_part(tmp_path: Path) -> None:
    whole = torch.randn(8, 5)
    bias = torch.randn(8)
    checkpoint.save(tmp_path / "c", {"weight": whole, "bias": bias})

    def loads(P: Partition) -> None:
        net = nn.Linear(5, 8, device="meta")
        layout = line(P, (8, 5))
        block = layout.block(P.transport.rank)
        net.weight = split(torch.empty(8, 5, device="meta"), layout, P.transport.rank)
        checkpoint.load(tmp_path / "c", net, P)
        assert torch.equal(net.weight.detach(), whole[block.slices])
        assert net.weight.layout == layout
        assert net.weight.requires_grad
        assert isinstance(net.bias, nn.Parameter)
        assert torch.equal(net.bias.detach(), bias)

    crew(3, loads)


def test_a_deferred_module_is_made_by_the_load(tmp_path: Path) -> None:
    deferring = pytest.importorskip("gridwise.deferred_init")
    state = training(torch.optim.Adam)
    checkpoint.save(tmp_path / "c", {"net": state["net"]})
    net = deferring.deferred_init(Net)
    with pytest.raises(CheckpointMismatch, match="deferred"):
        checkpoint.save(tmp_path / "d", {"net": net})
    before = torch.get_rng_state()
    checkpoint.load(tmp_path / "c", {"net": net})
    assert torch.equal(torch.get_rng_state(), before)  # nothing was initialised
    assert not deferring.is_deferred(net)
    assert net.tied is net.body[2].weight
    for key, value in state["net"].named_parameters():
        assert torch.equal(net.get_parameter(key), value)


def test_a_load_needs_little_memory_besides_the_state(tmp_path: Path) -> None:
    """In a program of its own: 200 MiB are saved and loaded in place, the largest resident size grows by less than 64."""
    program = textwrap.dedent("""
        import resource, sys, torch
        from gridwise import checkpoint
        state = {f"t{i}": torch.full((5_000_000,), float(i)) for i in range(10)}
        checkpoint.save(sys.argv[1] + "/first", {"x": torch.ones(10)})
        checkpoint.load(sys.argv[1] + "/first")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        checkpoint.save(sys.argv[1] + "/c", state)
        saved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for x in state.values():
            x.zero_()
        checkpoint.load(sys.argv[1] + "/c", state)
        loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert all((x == i).all() for i, x in enumerate(state.values()))
        assert saved - before < 16 << 10, (before, saved)
        assert loaded - before < 64 << 10, (before, loaded)
    """)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=120)


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
