"""Steps of small networks as plain loops: the same numbers as the layers give, from the compiler and from the cache."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gridwise.tagi.nn as nn
from gridwise import compiling
from gridwise.errors import ArgumentError
from gridwise.tagi.inference.compiled_step import CompiledStep
from gridwise.tagi.inference.native.loops import WorkspacePlan, grouped, program
from gridwise.tagi.inference.native.lowering import StepLoops
from gridwise.tagi.inference.native.recording import record
from gridwise.tagi.inference.native.step import native_step
from gridwise.tagi.inference.native.values import NotNativeError

needs_compiler = pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")

NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], int, int, str]] = {
    "relu": (lambda: nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 2)), 3, 2, "all"),
    "mixtures": (
        lambda: nn.Sequential(nn.Linear(3, 5), nn.MixtureReLU(), nn.LayerNorm([5]), nn.Linear(5, 3), nn.Remax()),
        3,
        3,
        "all",
    ),
    "noise": (lambda: nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 4), nn.EvenExp()), 3, 2, "heteros"),
    "classes": (lambda: nn.Sequential(nn.Linear(3, 9), nn.Sigmoid(), nn.Linear(9, 11)), 3, 4, "indices"),
}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gridwise" / "compiled"


def data(name: str, rows: int) -> tuple[Tensor, Tensor, Tensor | None]:
    _, inputs, columns, kind = NETWORKS[name]
    x, y = torch.randn(rows, inputs).double(), torch.randn(rows, columns).double()
    y[1, 0] = torch.nan
    return x, y, torch.rand(rows, 11).argsort(1)[:, :columns] + 1 if kind == "indices" else None


def last_of(step: nn.TrainStep) -> str:
    assert isinstance(step._run, CompiledStep)
    return next(iter(step._run._made.values())).run.name


@needs_compiler
@pytest.mark.parametrize("name", NETWORKS)
def test_an_epoch_is_the_same_as_the_steps_of_the_layers(name: str) -> None:
    torch.manual_seed(0)
    build, _, _, kind = NETWORKS[name]
    net = build().double()
    plain = copy.deepcopy(net)
    fast, slow = nn.TrainStep(net, kind, compile=True), nn.TrainStep(plain, kind)
    x, y, index = data(name, 38)
    order = torch.randperm(38)[:35]
    for _ in range(2):
        mine = fast.epoch(x, y, 0.3, index, batch_size=4, order=order)
        want = [torch.full((38, 11 if index is not None else t.shape[1]), torch.nan).double() for t in mine]
        for rows in order.split(4):
            mu, var = slow(x[rows], y[rows], 0.3, None if index is None else index[rows])
            want[0][rows], want[1][rows] = mu, var
        torch.testing.assert_close(mine, tuple(want), rtol=1e-9, atol=1e-11, equal_nan=True)
    assert last_of(fast) == "native"
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.data, theirs.data, rtol=1e-9, atol=1e-11)


def test_an_epoch_of_plain_steps() -> None:
    torch.manual_seed(0)
    net = NETWORKS["relu"][0]().double()
    other = copy.deepcopy(net)
    x, y, _ = data("relu", 10)
    noise = torch.rand(10, 2).double() + 0.1
    mu, var = nn.TrainStep(net).epoch(x, y, noise, batch_size=4)
    step = nn.TrainStep(other)
    want = [step(x[rows], y[rows], noise[rows]) for rows in torch.arange(10).split(4)]
    torch.testing.assert_close(mu, torch.cat([m for m, _ in want]))
    torch.testing.assert_close(var, torch.cat([v for _, v in want]))
    for wrong, match in (({"batch_size": 0}, "batch_size"), ({"order": [10]}, "order"), ({"order": [-1]}, "order")):
        with pytest.raises(ArgumentError, match=match):
            nn.TrainStep(net).epoch(x, y, 0.1, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="noise"):
        nn.TrainStep(net).epoch(x, y, torch.ones(7).double())


@needs_compiler
def test_a_recurrence(empty_cache: Path) -> None:
    """A network without states between steps, of hundreds of loops, compiled as a function of tensors alone."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.LSTM(1, 3, 3), nn.Linear(9, 1)).double()
    plain = copy.deepcopy(net)
    fast, slow = nn.TrainStep(net, compile=True), nn.TrainStep(plain)
    x, y = torch.randn(24, 3).double(), torch.randn(24, 1).double()
    for rows in torch.arange(24).split(4):
        got, want = fast(x[rows], y[rows], 0.1), slow(x[rows], y[rows], 0.1)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
    assert last_of(fast) == "native"
    assert [path.suffix for path in sorted(empty_cache.iterdir())] == [".json", ".so"]


@needs_compiler
def test_the_second_time_it_is_loaded(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step_of(net: nn.Sequential) -> nn.TrainStep:
        step = nn.TrainStep(net, compile=True)
        step(torch.ones(4, 3), torch.ones(4, 2), 0.1)
        return step

    torch.manual_seed(0)
    net = NETWORKS["relu"][0]()
    assert last_of(step_of(net)) == "native"
    monkeypatch.setattr(compiling, "compiled", lambda *args: pytest.fail("compiled again"))
    assert last_of(step_of(net)) == "native"
    net.set_cap(3.0)  # another step, so another key
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        step_of(net)


@needs_compiler
def test_a_folder_that_others_write_to_is_not_used(empty_cache: Path) -> None:
    empty_cache.mkdir(parents=True)
    empty_cache.chmod(0o777)
    assert compiling.cache_folder() is None
    a = torch.rand(3)
    assert torch.equal(native_step(lambda a: [a + a], [a], "twice")(a)[0], 2 * a)
    assert not list(empty_cache.iterdir())


@needs_compiler
def test_a_unit_that_is_not_there_is_refused() -> None:
    x, y, index = data("classes", 40)
    assert index is not None
    step = nn.TrainStep(NETWORKS["classes"][0]().double(), "indices", compile=True)
    step.epoch(x, y, 0.3, index, batch_size=4)
    index[37, 1] = 12
    with pytest.raises(ArgumentError, match="index"):
        step.epoch(x, y, 0.3, index, batch_size=4)


def at(a: Tensor) -> Tensor:
    return (a > 0).long()


OPERATORS: dict[str, Callable[[Tensor, Tensor], list[Tensor]]] = {
    "views": lambda a, b: [
        (a + 1).t()[1:].unsqueeze(1).expand(-1, 2, -1) * b.view(2, 2)[0, 1],
        a.reshape(2, 6).select(1, 3),
    ],
    "reshaped sum": lambda a, b: [(a * b).view(12).view(6, 2).sum(1), a.t().reshape(-1), (a.t() + 1).reshape(2, 6)],
    "means": lambda a, b: [a.mean(0), a.mean(), a.amax(1), a.amin((0, 1)), a.sum(1, keepdim=True) + a],
    "pieces": lambda a, b: [torch.cat((a, a * 2), 1), torch.stack(a.unbind(1)), *a.split(2, 1), F.pad(a, (1, 2))],
    "products": lambda a, b: [
        a @ a.t(),
        torch.addmm(a.t() @ a, a.t(), a),
        torch.baddbmm(a[None].mT, a[None].mT, a[None, :, :3]),
    ],
    "choices": lambda a, b: [
        torch.where(a > 0.2, a, -1.0),
        (a > 0) & (b < 0.3),
        a.sign(),
        a.clamp(max=0.1),
        a.lt(b).sum(),
    ],
    "places": lambda a, b: [
        a.gather(1, at(a)),
        a.index_select(0, torch.tensor([2, 0])),
        a.scatter(1, at(a)[:, :1], a * b),
    ],
    "functions": lambda a, b: [
        a.exp(),
        a.expm1(),
        a.abs().log1p(),
        a.erf(),
        torch.erfc(a),
        a.sigmoid(),
        a.tanh(),
        a.abs().rsqrt(),
    ],
    "in place": lambda a, b: [a.mul_(2).clone(), a.t().add_(1), torch._foreach_add([a, b], 1.0)[0], b.copy_(a[0])],
}


@needs_compiler
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    run = OPERATORS[name]
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        tensors = [torch.randn(3, 4, dtype=dtype), torch.randn(4, dtype=dtype)]
        mine, theirs = ([t.clone() for t in tensors] for _ in range(2))
        got, want = native_step(run, mine, f"{name} {dtype}")(*mine), run(*theirs)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, theirs)


def test_what_is_not_known_is_refused() -> None:
    a = torch.rand(3, 4)
    for run in (lambda a: [a.cumsum(0)], lambda a: [a.half()], lambda a: [torch.addcmul(a, a, a, value=2.0)]):
        with pytest.raises(NotNativeError):
            StepLoops([a], record(run, [a]))


def test_neighbours_are_one_loop_and_memory_is_used_again() -> None:
    a = torch.rand(30, 40)

    def run(a: Tensor) -> list[Tensor]:
        for _ in range(5):
            a = (a.t() @ a)[:30, :40]
            a = a * a + torch.tanh(a)
        return [a]

    groups = grouped(StepLoops([a], record(run, [a])).loops)
    memory = WorkspacePlan(groups)
    assert memory.size < 3 * 40 * 40 * 4 + 64
    assert program(groups, memory).count("tanh(") == 5


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    with pytest.raises(NotNativeError, match="no C"):
        native_step(lambda a: [a + a], [torch.ones(2)], "twice")
