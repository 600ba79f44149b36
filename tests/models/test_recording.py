"""What recording would change without a word of what a model means: kept, or refused by name. One worker, on a grid of ones."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise.errors import PartitionError, UnsupportedError


class Config:
    def __init__(self) -> None:
        self.calls, self.scale = 0, 2.0


class Of(nn.Module):
    """A convolution, and then a function of the module and of what it gives."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function, self.conv, self.norm = function, nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.n, self.cache, self.table, self.config = 0, None, [0, 0], Config()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.conv(x))


def partition() -> Any:
    return gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])


def distributed(function: Callable[[Any, Tensor], Any]) -> tuple[Any, nn.Module, Tensor]:
    torch.manual_seed(0)
    sequential = Of(function).double()
    return gridwise.distribute(sequential, partition()), sequential, torch.randn(2, 3, 8, 8, dtype=torch.float64)


def check(model: nn.Module, sequential: nn.Module, x: Tensor, calls: int = 2) -> None:
    """Outputs, gradients and buffers of some calls are the same."""
    for _ in range(calls):
        mine, other = (x.clone().requires_grad_() for _ in range(2))
        model.zero_grad()
        sequential.zero_grad()
        y, expected = model(mine), sequential(other)
        torch.testing.assert_close(y, expected)
        if expected.requires_grad:
            expected.square().sum().backward()
            y.square().sum().backward()
            torch.testing.assert_close(mine.grad, other.grad)
            for own, whole in zip(model.parameters(), sequential.parameters(), strict=True):
                torch.testing.assert_close(own.grad, whole.grad)
    for own, buffer in zip(model.buffers(), sequential.buffers(), strict=True):
        torch.testing.assert_close(own, buffer)


class Scaled(torch.autograd.Function):
    """Twice the tensor, with a hundred times the tensor as the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return factor * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return 50 * ctx.factor * gradient * x, None


scale = Scaled.apply


def branch_by_type(m: Any, y: Tensor) -> Tensor:
    return y if isinstance(y, Tensor) else -y


def branch_by_match(m: Any, y: Tensor) -> Tensor:
    match y:
        case Tensor():
            return 2 * y
        case _:
            return -y


def branch_by_error(m: Any, y: Tensor) -> Tensor:
    try:
        rows = range(y.shape[2])
    except TypeError:
        return -y
    return y * len(rows)


def switched(m: Any, y: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    z = m.norm(y)
    torch.set_grad_enabled(before)
    return y * z


def under(make: Callable[[], AbstractContextManager[Any]]) -> Callable[[Any, Tensor], Tensor]:
    def function(m: Any, y: Tensor) -> Tensor:
        with make():
            z = m.norm(y)
        return y * z

    return function


def counted(m: Any, y: Tensor) -> Tensor:
    m.count.add_(1)
    return y * m.count


def written_through_a_view(m: Any, y: Tensor) -> Tensor:
    z = torch.zeros_like(y)
    z[:, :2] = y[:, 2:]
    z[:, 2:].add_(1.0)
    return z * y


def cached_within_the_call(m: Any, y: Tensor) -> Tensor:
    m.cache = [None, y]
    z = m.cache[1] * 2
    m.cache = None
    return z


def set_to_the_same(m: Any, y: Tensor) -> Tensor:
    m.n, m.table = 5, [y.shape[0], y.shape[1]]
    return y * m.n


def in_other_code_when_compiled(m: Any, y: Tensor) -> Tensor:
    return -y if torch.compiler.is_compiling() or torch.jit.is_tracing() else y


SAME: dict[str, Callable[[Any, Tensor], Any]] = {
    "isinstance": branch_by_type,
    "is_tensor": lambda m, y: y if torch.is_tensor(y) else -y,
    "match": branch_by_match,
    "try": branch_by_error,
    "is tracing": lambda m, y: -y if torch.fx._symbolic_trace.is_fx_tracing() else y,
    "is compiling": in_other_code_when_compiled,
    "sizes": lambda m, y: y[:, : y.shape[1] // 2] if y.shape[2] % 4 == 0 and len(y.shape) == 4 else -y,
    "int of a size": lambda m, y: torch.zeros(int(y.shape[0]), 4, 8, 8, dtype=y.dtype) + y,
    "a Function": lambda m, y: Scaled.apply(y, 2.0),
    "a Function bound before": lambda m, y: scale(y, 2.0) + y,
    "checkpoint": lambda m, y: checkpoint(lambda z: m.norm(z).sin() * z, y, use_reentrant=False) * y,
    "reentrant checkpoint": lambda m, y: checkpoint(lambda z: m.norm(z).sin() * z, y, use_reentrant=True) * y,
    "a Function in a checkpoint": lambda m, y: checkpoint(lambda z: scale(z.sin(), 2.0) * z, y, use_reentrant=False),
    "no_grad": under(torch.no_grad),
    "enable_grad": under(torch.enable_grad),
    "inference mode": lambda m, y: y * (under(torch.inference_mode)(m, y.detach())),
    "grad switched off": switched,
    "detach": lambda m, y: y * y.detach(),
    "a branch on requires_grad": lambda m, y: 2 * y if y.requires_grad else -y,
    "a branch on grad mode": lambda m, y: 2 * y if torch.is_grad_enabled() else -y,
    "a branch on training": lambda m, y: 2 * y if m.training else -y,
    "a buffer that counts": counted,
    "written through a view": written_through_a_view,
    "a cache within the call": cached_within_the_call,
    "attributes that become the same": set_to_the_same,
    "numbers": lambda m, y: y * torch.tensor([1.0, 2, 3, 4]).view(4, 1, 1),
    "norm": lambda m, y: m.norm(y),
    "a configuration": lambda m, y: y * m.config.scale,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", SAME)
def test_kept(name: str) -> None:
    model, sequential, x = distributed(SAME[name])
    check(model, sequential, x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), sequential(x))
    model.eval()
    sequential.eval()
    torch.testing.assert_close(model(x), sequential(x))
    for part in ("n", "table", "cache"):
        assert getattr(model, part) == getattr(sequential, part)


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
    "an error that is caught": (swallowed, "needs the numbers of a tensor"),
    "a counter in an object": (in_an_object, r"Of\.config\.calls: was 0, is 1"),
    "a size of a value": (lambda m, y: y[y > 0], "needs the numbers"),
}


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
        UnsupportedError, match=r"in 1\.0 needs .*test_recording\.py:\d+, in forward:  return y if y\.amax"
    ):
        model(torch.ones(1, 3, 2, 2))
    with pytest.raises(PartitionError, match=r"cannot take a global input of shape \(1, 5, 2, 2\)(.|\n)*in 0"):
        model(torch.ones(1, 5, 2, 2))


def test_hooks_of_modules() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)

    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).double()

    sequential = build()
    sequential[0].register_forward_hook(lambda module, given, y: y + 1)
    sequential[0].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    sequential.register_forward_hook(lambda module, given, y: y - y.mean())  # of the global tensor
    check(gridwise.distribute(sequential, partition()), sequential, x)

    storing, backward, before = build(), build(), build()
    storing[0].register_forward_hook(lambda module, given, y: None)
    backward[1].register_full_backward_hook(lambda module, given, taken: None)
    before[0].register_full_backward_pre_hook(lambda module, taken: None)
    for model, words in (
        (storing, "a forward hook that returns nothing"),
        (backward, "a backward hook in 1"),
        (before, "in 0"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            gridwise.distribute(model, partition())(x)

    seen: list[str] = []
    model = gridwise.distribute(build(), partition())
    model.register_forward_pre_hook(lambda module, given: seen.append("before"))
    model.register_forward_hook(lambda module, given, y: seen.append("forward"))
    model.register_full_backward_hook(lambda module, given, taken: seen.append("backward"))
    model(x.requires_grad_()).sum().backward()
    assert seen == ["before", "forward", "backward"]


class Pair(NamedTuple):
    first: Tensor
    second: dict[str, Tensor]


@dataclass
class Data:
    y: Tensor
    name: str = "data"
    parts: list[Tensor] | None = None


class Output(OrderedDict):
    """A dict whose items are attributes too, as transformers has it."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


def output(y: Tensor) -> Output:
    made = Output()
    made["logits"], made["hidden"] = y, (y.sin(), y.cos())
    return made


CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], list[Tensor]]]] = {
    "a named tuple": (lambda y: Pair(y, {"a": y.sin()}), lambda v: [v.first, v.second["a"]]),
    "a dataclass": (lambda y: Data(y, "mine", [y.sin()]), lambda v: [v.y, *v.parts]),
    "a dict with attributes": (output, lambda v: [v.logits, v["hidden"][0], v[1][1]]),
    "a list": (lambda y: [y, None, (y.sin(), 3)], lambda v: [v[0], v[2][0]]),
    "a function's tuple": (lambda y: y.max(1), lambda v: [v.values, v.indices]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers(name: str) -> None:
    make, tensors = CONTAINERS[name]
    model, sequential, x = distributed(lambda m, y: make(y))
    y, expected = model(x), sequential(x)
    assert type(y) is type(expected)
    for mine, whole in zip(tensors(y), tensors(expected), strict=True):
        torch.testing.assert_close(mine, whole)
    for P in tensors(model.P_y):
        assert P.ranks == (0,)
    assert type(model.P_y) is type(expected)


def test_containers_as_inputs() -> None:
    class Net(nn.Module):
        def forward(self, data: Data, *more: Tensor, options: dict[str, Any]) -> Tensor:
            assert data.parts is not None
            y = data.y + data.parts[0] if options["adds"] else data.y - data.parts[0]
            return y * options["by"] + sum(more)

    model, x = gridwise.distribute(Net(), partition()), torch.randn(1, 2, 3, 4)
    for adds in (True, False):
        arguments = (Data(x, parts=[x.sin()]), x, 2 * x), {"options": {"adds": adds, "by": x.cos()}}
        torch.testing.assert_close(model(*arguments[0], **arguments[1]), Net()(*arguments[0], **arguments[1]))


def test_norms_and_parametrizations() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 6, 6, dtype=torch.float64)
    conv = [nn.Conv2d(4, 4, 3, padding=1).double() for _ in range(4)]
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(conv[0])
    parts = [old, nn.utils.spectral_norm(conv[1]), nn.utils.parametrizations.weight_norm(conv[2]),
             nn.utils.parametrizations.spectral_norm(conv[3])]  # fmt: skip
    for part in parts:
        sequential = nn.Sequential(part, nn.BatchNorm2d(4, momentum=None).double())
        check(gridwise.distribute(sequential, partition()), sequential, x, calls=3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
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


def test_a_loss_of_a_model_is_recorded_as_a_whole() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)).double()
    twin = gridwise.distribute(model, partition())
    x, target = torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.randint(4, (2, 6, 6))
    P_t = gridwise.world().create_cartesian_topology_partition([1, 1, 1])

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(model(x), t) + sum(p.square().sum() for p in model.parameters())

    expected = loss(x, target)
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    statistics = [b.clone() for b in model.buffers()]
    model.zero_grad()
    for _ in range(2):
        value = gridwise.distribute(loss, P_t, x=partition())(x, target)
        torch.testing.assert_close(value, expected)
    value.backward()
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient)
    of_distributed = gridwise.distribute(lambda x, t: F.cross_entropy(twin(x), t), P_t, x=partition())
    of_distributed(x, target).backward()
    for b, buffer in zip(twin.buffers(), statistics, strict=True):
        torch.testing.assert_close(b, buffer)
    assert all(p.grad is not None for p in twin.parameters())


def test_what_a_function_reads_may_be_another_value_later() -> None:
    model, factor, shift = nn.Conv2d(3, 4, 1), 2.0, torch.ones(())
    loss = gridwise.distribute(lambda x: factor * model(x).mean() + shift, partition())
    x = torch.randn(2, 3, 4, 4)
    first = shift
    for factor, shift in ((2.0, first), (3.0, first), (3.0, torch.zeros(()))):
        torch.testing.assert_close(loss(x), factor * model(x).mean() + shift)
    net, sequential, x = distributed(SAME["a configuration"])
    for scale in (2.0, 5.0):
        net.config.scale = sequential.config.scale = scale
        check(net, sequential, x)


def test_hooks_of_all_modules_are_named() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, y: None)
    try:
        with pytest.raises(UnsupportedError, match="a hook of all modules"):
            gridwise.distribute(nn.Conv2d(1, 1, 1), partition())(torch.ones(1, 1, 2, 2))
    finally:
        handle.remove()
