"""What a recording would lose of a model's code, and models that cannot be recorded: refused by name."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.testing import workers

from .recorded import distributed, partition, scale, under


class Pair(NamedTuple):
    first: list[int]
    second: int


def kept_outside(kept: list[Tensor]) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, y: (kept.append(y), y)[1]


def counting(m: Any, y: Tensor) -> Tensor:
    m.n += 1
    return y * m.n


def caching(m: Any, y: Tensor) -> Tensor:
    z = y if m.cache is None else y + m.cache
    m.cache = y
    return z


def hooked(m: Any, y: Tensor) -> Tensor:
    if y.requires_grad:
        y.register_hook(lambda gradient: 2 * gradient)
    return y


def kept_gradient(m: Any, y: Tensor) -> Tensor:
    y.retain_grad()
    return y


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class OtherDtype(InPlace):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_output_grad_dtype(torch.float32)
        return 2 * x


def swallowed(m: Any, y: Tensor) -> Tensor:
    try:
        return y * float(y.detach().sum())
    except Exception:
        return -y


def in_an_object(m: Any, y: Tensor) -> Tensor:
    m.config.calls += 1
    return y * m.config.calls


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a counter": (counting, r"Of\.n: was 1, is 2"),
    "a cache from call to call": (caching, r"Of\.cache: was None, is a tensor of shape \(2, 4, 8, 8\)"),
    "a tensor in a list": (lambda m, y: (m.table.append(y), y)[1], r"Of\.table"),
    "a tensor kept elsewhere": (kept_outside([]), "keeps tensors of a call"),
    "random numbers of Python": (lambda m, y: y * random.random(), "random numbers of Python"),
    "random numbers of NumPy": (lambda m, y: y * np.random.rand(), "random numbers of NumPy"),  # noqa: NPY002
    "a seed": (lambda m, y: (torch.manual_seed(3), y)[1], "random numbers of torch"),
    "a hook of a tensor": (hooked, r"register_hook of a tensor would be lost.*\n.*fix"),
    "a gradient that is kept": (kept_gradient, "retain_grad of a tensor"),
    "saved tensors on the CPU": (under(torch.autograd.graph.save_on_cpu), "saved_tensors_hooks"),
    "a Function that writes": (lambda m, y: InPlace.apply(y * 1), "mark_dirty"),
    "a branch on a value": (lambda m, y: y if y.sum() > 0 else -y, "needs the numbers of a tensor.*if y.sum"),
    "a number of a tensor": (lambda m, y: y * y.mean().item(), "_local_scalar_dense"),
    "numbers for NumPy": (lambda m, y: y * float(y.detach().mean().numpy()), r"numpy\(\) needs the numbers.*y.detach"),
    "a sparse tensor": (lambda m, y: y.to_sparse(), "a sparse tensor, of one of shape"),
    "an error that is caught": (swallowed, "needs the numbers of a tensor"),
    "a counter in an object": (in_an_object, r"Of\.config\.calls: was 1, is 2"),
    "a size of a value": (lambda m, y: y[y > 0], "needs the numbers"),
}
if hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype"):  # since torch 2.15
    REFUSED["a Function that sets a dtype"] = lambda m, y: OtherDtype.apply(y), "set_output_grad_dtype"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    function, words = REFUSED[name]
    model, _, x = distributed(function)
    before = random.getstate()
    with pytest.raises(UnsupportedError, match=words):
        model(x)
    random.setstate(before)
    assert torch.is_grad_enabled()
    assert type(model.conv.weight) is not torch._subclasses.FakeTensor  # all is as it was
    assert (model.n, model.cache, model.table) == (0, None, [0, 0])
    assert float(scale(torch.ones((), requires_grad=True), 2.0).detach()) == 2.0


def test_errors_name_module_and_line() -> None:
    class Inner(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return y if y.amax() > 0 else -y

    model = gridwise.distribute(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(Inner())), partition())
    with pytest.raises(
        UnsupportedError, match=r"in 1\.0 needs .*test_refusals\.py:\d+, in forward:  return y if y\.amax"
    ):
        model(torch.ones(1, 3, 2, 2))
    with pytest.raises(PartitionError, match=r"cannot take a global input of shape \(1, 5, 2, 2\)(.|\n)*in 0"):
        model(torch.ones(1, 5, 2, 2))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_models_that_cannot_be_recorded_are_named() -> None:
    P, conv = partition(), nn.Conv2d(1, 1, 1)
    for model, words in (
        (nn.Sequential(torch.jit.script(conv)), "its 0, is scripted"),
        (nn.Sequential(nn.LazyConv2d(2, 1)), "its 0, is lazy"),
        (nn.DataParallel(nn.Conv2d(1, 1, 1)), "distributes a model by itself"),
        (torch.compile(conv), "is compiled"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            gridwise.distribute(model, P)
    inside = nn.Sequential(conv)
    inside.compile()
    torch.testing.assert_close(gridwise.distribute(inside, P)(torch.ones(1, 1, 2, 2)), conv(torch.ones(1, 1, 2, 2)))


def test_names_that_the_result_needs_are_refused() -> None:
    class Reports(nn.Conv2d):
        def report(self) -> str:
            return "mine"

    class Placed(nn.Conv2d):
        P_y = 3

    held = nn.Conv2d(1, 1, 1)
    held.register_buffer("P_x", torch.ones(()))
    for model, name in ((Reports(1, 1, 1), "report"), (Placed(1, 1, 1), "P_y"), (held, "P_x")):
        with pytest.raises(UnsupportedError, match=rf"'{name}', a name that the result needs.*\n.*fix"):
            gridwise.distribute(model, partition())


@workers(2, transports=("mpi",))
def test_an_error_of_some_workers_is_one_error_of_all() -> None:
    class Differs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if gridwise.world().rank == 1:
                return x * x.sum().item()
            return x + x[:, :7] if self.training else x

    model = gridwise.distribute(Differs(), gridwise.world().create_cartesian_topology_partition([2, 1]))
    for mode in (True, False):
        with pytest.raises(UnsupportedError, match="cannot be recorded on some workers") as info:
            model.train(mode)(torch.ones(2, 8))
        said = str(info.value)
        assert "worker 1: " in said
        assert ("worker 0: " in said) == mode


def test_hooks_of_all_modules_are_named() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, y: None)
    try:
        with pytest.raises(UnsupportedError, match="a hook of all modules"):
            gridwise.distribute(nn.Conv2d(1, 1, 1), partition())(torch.ones(1, 1, 2, 2))
    finally:
        handle.remove()


@pytest.mark.parametrize("sparse", [True, False], ids=["placing", "running"])
@pytest.mark.parametrize("inside", [lambda f, x: f(x), lambda f, x: checkpoint(f, x, use_reentrant=False)])
def test_autocast_is_off_after_an_error_under_it(sparse: bool, inside: Callable[..., Tensor]) -> None:
    class Under(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4, sparse=sparse)

        def body(self, x: Tensor) -> Tensor:
            with (
                torch.autocast("cpu", dtype=torch.bfloat16),
                torch.autocast("cpu", dtype=torch.float16),
                torch.no_grad(),
            ):
                return self.table(x + 5)

        def forward(self, x: Tensor) -> Tensor:
            return inside(self.body, x)

    model = gridwise.distribute(Under(), gridwise.world().create_cartesian_topology_partition([1, 1]))
    with pytest.raises(UnsupportedError if sparse else IndexError):
        model(torch.zeros(2, 3, dtype=torch.long))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    torch.autocast_increment_nesting()
    assert torch.autocast_decrement_nesting() == 0


class Counts(nn.Module):
    """Counts its calls in arrays, in containers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.ordered, self.default = OrderedDict(a=np.zeros(2)), defaultdict(list, {"a": [np.zeros(2)]})
        self.row, self.pair, self.lists = deque([np.zeros(2)], 3), (np.zeros(2), Pair([0], 1)), [[0], {0}]

    def forward(self, x: Tensor) -> Tensor:
        self.ordered["a"] = self.ordered["a"] + 1
        for array in (self.default["a"][0], self.row[0], self.pair[0]):
            array += 1
        self.pair[1].first.append(1)
        self.lists[0][0] += 1
        self.lists[1].add(len(self.lists[1]))
        return x


@pytest.mark.parametrize("name", ["ordered", "default", "row", "pair", "lists"])
def test_containers_that_change_in_every_call_are_refused_and_restored(name: str) -> None:
    model = gridwise.distribute(Counts(), gridwise.world().create_cartesian_topology_partition([1]))
    before = {key: str(value) for key, value in vars(Counts()).items()}
    with pytest.raises(UnsupportedError, match=rf"Counts\.{name}: was .*, is "):
        model(torch.ones(2))
    assert str(getattr(model, name)) == before[name]
