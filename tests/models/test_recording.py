"""What recording might change without a word of what a model means, and keeps. One worker, on a grid of ones."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.models.model import runner_of

from .recorded import Config, Scaled, check, distributed, partition, scale, under


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


def filled_once(m: Any, y: Tensor) -> Tensor:
    if len(m.table) == 2:
        m.table.append(3)
    m.filled.setdefault("k", m.table)
    return y * sum(m.filled["k"])


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
    "containers that are filled once": filled_once,
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
    check(gridwise.distribute(copy.deepcopy(sequential), partition()), sequential, x)

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


def build_of_torch() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).double()


class Collecting(nn.Module):
    """Gives what hooks have collected of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)).double()
        self.found: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.net(x)
        found, self.found = self.found, []
        return sum((y * y.mean() for y in found), torch.zeros((), dtype=x.dtype))


def test_hooks_that_collect() -> None:
    torch.manual_seed(0)
    sequential, x = Collecting(), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    for part in sequential.net:
        part.register_forward_hook(lambda module, given, y: sequential.found.append(y))
    expected = sequential(x)
    kept: list[Tensor] = []
    model = Collecting()
    model.load_state_dict(sequential.state_dict())
    distributed = gridwise.distribute(model, partition())
    for part in distributed.net:  # hooks of its parts, registered by other code
        torch.nn.modules.module.Module.register_forward_hook(part, lambda module, given, y: distributed.found.append(y))
    torch.testing.assert_close(distributed(x), expected)
    torch.testing.assert_close(distributed(x), expected)

    net, found = build_of_torch(), list[Tensor]()
    for part in net:
        part.register_forward_hook(lambda module, given, y: found.append(y))

    def collected(x: Tensor) -> Tensor:
        net(x)
        total = sum(y.square().sum() for y in found)
        found.clear()
        return total

    torch.testing.assert_close(gridwise.distribute(collected, partition())(x), collected(x))
    keeping = Collecting()
    keeping.net[0].register_forward_hook(lambda module, given, y: kept.append(y))
    with pytest.raises(UnsupportedError, match="keeps"):
        gridwise.distribute(keeping, partition())(x)


def normed() -> list[nn.Module]:
    torch.manual_seed(0)
    conv = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(4)]
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(conv[0])
    parts = [old, nn.utils.spectral_norm(conv[1]), nn.utils.parametrizations.weight_norm(conv[2]),
             nn.utils.parametrizations.spectral_norm(conv[3])]  # fmt: skip
    return [nn.Sequential(part, nn.BatchNorm2d(4, momentum=None)).double() for part in parts]


def test_norms_and_parametrizations() -> None:
    x = torch.randn(3, 4, 6, 6, dtype=torch.float64)
    for model, sequential in zip(normed(), normed(), strict=True):
        check(gridwise.distribute(model, partition()), sequential, x, calls=3)


def test_a_loss_of_a_model_is_recorded_as_a_whole() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)).double()
    twin = gridwise.distribute(copy.deepcopy(model), partition())
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


class Trainer:
    """A loss that depends on attributes of the object and of its configuration."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.config, self.weights, self.offset = model, Config(), [1.0, 2.0], torch.zeros(())
        self.table, self.steps = np.ones(2), 0

    def loss(self, x: Tensor) -> Tensor:
        return self.scaled(self.model(x).mean()) * self.weights[1] + self.offset + torch.from_numpy(self.table).sum()

    def scaled(self, y: Tensor) -> Tensor:
        return self.scale * y

    @property
    def scale(self) -> float:
        return self.config.scale

    __call__ = loss

    @torch.enable_grad()
    def decorated(self, x: Tensor) -> Tensor:
        return self.loss(x)


WAYS: dict[str, Callable[[Trainer], Callable[..., Tensor]]] = {
    "a method": lambda trainer: trainer.loss,
    "a callable object": lambda trainer: trainer,
    "a decorated method": lambda trainer: trainer.decorated,
    "a partial method": lambda trainer: functools.partial(trainer.loss),
    "an argument": lambda trainer: functools.partial(Trainer.loss, trainer),
}


@pytest.mark.parametrize("name", WAYS)
def test_what_an_object_holds_may_be_another_value_later(name: str) -> None:
    trainer = Trainer(nn.Conv2d(3, 4, 1))
    loss, x = gridwise.distribute(WAYS[name](trainer), partition()), torch.randn(2, 3, 4, 4)
    for attribute, value in (
        (trainer.config, {"scale": 5.0}),
        (trainer, {"weights": [1.0, 3.0]}),
        (trainer, {"offset": torch.ones(())}),
        (trainer, {"model": nn.Conv2d(3, 2, 1)}),
        (trainer, {"table": np.zeros(2)}),
    ):
        loss(x)
        vars(attribute).update(value)
        torch.testing.assert_close(loss(x), trainer.loss(x), check_dtype=False)
    before = runner_of(loss)._plans.count
    trainer.steps += 1  # which the loss does not read
    loss(x)
    assert runner_of(loss)._plans.count == before


def test_what_a_closure_holds_may_be_another_value_later() -> None:
    class Settings:
        factor = 1.0

    config, table = Config(), {"shift": 1.0}
    loss = gridwise.distribute(lambda x: x.mean() * config.scale * Settings.factor + table["shift"], partition())
    x = torch.randn(2, 3, 4, 4)
    for config.scale, table["shift"], Settings.factor in ((2, 1, 1), (3, 1, 1), (3, 2, 1), (3, 2, 4)):
        torch.testing.assert_close(loss(x), x.mean() * config.scale * Settings.factor + table["shift"])


def test_what_a_function_reads_may_be_another_value_later() -> None:
    model, factor, shift = nn.Conv2d(3, 4, 1), 2.0, torch.ones(())
    loss = gridwise.distribute(lambda x: factor * model(x).mean() + shift, partition())
    x = torch.randn(2, 3, 4, 4)
    first = shift
    for factor, shift in ((2.0, first), (3.0, first), (3.0, torch.zeros(()))):
        torch.testing.assert_close(loss(x), factor * model(x).mean() + shift)
    for function in (SAME["a configuration"], lambda m, y: y * m.config.schedule()):
        net, sequential, x = distributed(function)
        for value in (2.0, 5.0):
            for each in (net.config, sequential.config):
                each.scale = each.schedule.scale = value
            check(net, sequential, x)
