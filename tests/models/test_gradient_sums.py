"""When and how the gradients of a model's parameters are summed: begun while backward goes on, complete for whoever looks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import gridwise
from gridwise.errors import PartitionError
from gridwise.nn.parameters import gradient_buckets
from gridwise.testing import workers


class Chain(torch.nn.Module):
    """Some layers, of which one is used twice and one not at all."""

    def __init__(self, width: int = 24, depth: int = 5) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))
        self.unused = torch.nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.layers, self.layers[1]):
            x = torch.tanh(layer(x))
        return x


def made(**options: Any) -> tuple[Any, Chain, Tensor]:
    """A model on a grid that cuts the batch, in several buckets, the same in one process, and the whole input."""
    torch.manual_seed(0)
    world = gridwise.world()
    alone = Chain(**options).double()
    ours = Chain(**options).double()
    ours.load_state_dict(alone.state_dict())
    x = torch.randn(4 * world.size, 24, dtype=torch.float64)
    P_x = world.create_cartesian_topology_partition([world.size, 1])
    return gridwise.distribute(ours, P_x, example=x), alone, x


def own(x: Tensor) -> Tensor:
    world = gridwise.world()
    return x.tensor_split(world.size)[world.rank]


def in_small_buckets(body: Callable[[], None]) -> None:
    """Run a body with a bucket for each layer or two."""
    from gridwise.models import program

    before, program.FULL = program.FULL, 24 * 24 * 8 * 2
    try:
        body()
    finally:
        program.FULL = before


def same_gradients(model: torch.nn.Module, alone: torch.nn.Module, times: float = 1.0) -> None:
    pairs = zip(model.named_parameters(), alone.parameters(), strict=True)
    for (name, mine), theirs in pairs:
        if theirs.grad is None:
            assert mine.grad is None, name
        else:
            assert mine.grad is not None, name
            torch.testing.assert_close(mine.grad, times * theirs.grad, msg=lambda text, name=name: f"{name}: {text}")
    P = gridwise.world()
    found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    rows = P.transport.all_gather(torch.cat(found), P.team)
    assert all((row == rows[0]).all() for row in rows), "workers have different bits"


@workers(1, 2, 3, 4)
def test_backward() -> None:
    def body() -> None:
        model, alone, x = made()
        model(own(x)).pow(2).sum().backward()
        alone(x).pow(2).sum().backward()
        same_gradients(model, alone)

    in_small_buckets(body)


@workers(2, 3)
def test_sums_begin_before_earlier_layers_are_reached_and_end_after_all() -> None:
    def body() -> None:
        model, _, x = made()
        order: list[str] = []
        transport = gridwise.world().transport
        post = transport.post_sum

        def noted(x: Tensor, *rest: Any) -> Any:
            order.append("begun")
            pending = post(x, *rest)

            class Noted:
                def wait(self) -> None:
                    order.append("ended")
                    pending.wait()

            return Noted()

        transport.post_sum = noted  # type: ignore[method-assign]
        x = own(x).clone().requires_grad_()
        x.register_hook(lambda gradient: order.append("input"))
        try:
            model(x).sum().backward()
        finally:
            del transport.post_sum
        begun = order.count("begun")
        assert begun > 2
        assert order[begun + 1 :] == ["ended"] * begun
        assert order[:begun].count("begun") >= begun - 1  # the last one may begin after the input has its gradient

    in_small_buckets(body)


@workers(2, 3)
def test_hooks_and_retained_graphs_and_accumulation_see_complete_gradients() -> None:
    def body() -> None:
        model, alone, x = made()
        seen: list[Tensor] = []
        weight, theirs = model.layers[0].weight, alone.layers[0].weight
        weight.register_hook(lambda gradient: seen.append(gradient.clone()))
        y, z = model(own(x)).sum(), alone(x).sum()
        for _ in range(3):
            y.backward(retain_graph=True)
            z.backward(retain_graph=True)
        same_gradients(model, alone)
        for gradient in seen:
            torch.testing.assert_close(gradient, theirs.grad / 3)

    in_small_buckets(body)


@workers(2, 3)
def test_two_calls_in_one_backward_and_micro_batches() -> None:
    def body() -> None:
        model, alone, x = made()
        (model(own(x)).sum() + model(own(x) * 2).sum()).backward()
        model(own(x) + 1).sum().backward()
        (alone(x).sum() + alone(x * 2).sum() + alone(x + 1).sum()).backward()
        same_gradients(model, alone)

    in_small_buckets(body)


@workers(2, 3)
def test_autograd_grad_of_some_parameters() -> None:
    def body() -> None:
        model, alone, x = made()
        wanted = [model.layers[3].bias, model.layers[0].weight]
        theirs = [alone.layers[3].bias, alone.layers[0].weight]
        for ours, whole in zip(
            torch.autograd.grad(model(own(x)).sum(), wanted),
            torch.autograd.grad(alone(x).sum(), theirs),
            strict=True,
        ):
            torch.testing.assert_close(ours, whole)

    in_small_buckets(body)


@workers(2, 3)
def test_gradients_of_gradients() -> None:
    def body() -> None:
        model, alone, x = made()
        for net, given in ((model, own(x)), (alone, x)):
            used = [p for name, p in net.named_parameters() if not name.startswith("unused")]
            first = torch.autograd.grad(net(given).pow(2).sum(), used, create_graph=True)
            sum(g.pow(2).sum() for g in first).backward()
        same_gradients(model, alone)

    in_small_buckets(body)


@workers(2, 3)
def test_frozen_parameters() -> None:
    def body() -> None:
        model, alone, x = made()
        for net in (model, alone):
            net.layers[2].requires_grad_(False)
            net.layers[0].bias.requires_grad_(False)
        model(own(x)).sum().backward()
        alone(x).sum().backward()
        same_gradients(model, alone)

    in_small_buckets(body)


class Checkpointed(Chain):
    def forward(self, x: Tensor) -> Tensor:
        for a, b in pairwise(self.layers):
            x = torch.utils.checkpoint.checkpoint(lambda x, a=a, b=b: b(torch.tanh(a(x))), x, use_reentrant=False)
        return x


@workers(2, 3)
def test_checkpointed_layers() -> None:
    def body() -> None:
        torch.manual_seed(0)
        world = gridwise.world()
        alone, ours = Checkpointed().double(), Checkpointed().double()
        ours.load_state_dict(alone.state_dict())
        x = torch.randn(4 * world.size, 24, dtype=torch.float64)
        P_x = world.create_cartesian_topology_partition([world.size, 1])
        model = gridwise.distribute(ours, P_x, example=x)
        model(own(x)).sum().backward()
        alone(x).sum().backward()
        same_gradients(model, alone)

    in_small_buckets(body)


class Refused(RuntimeError):
    pass


@workers(2, 3)
def test_after_an_exception_in_the_middle_of_backward() -> None:
    """All workers meet it, and go on: sums that were begun do not mix with those of the next step."""

    def body() -> None:
        model, alone, x = made()

        def refuse(gradient: Tensor) -> None:
            raise Refused

        given = own(x).clone().requires_grad_()
        handle = given.register_hook(refuse)
        with pytest.raises(Refused):
            model(given).sum().backward()
        handle.remove()
        model.zero_grad()
        model(own(x)).sum().backward()
        alone(x).sum().backward()
        same_gradients(model, alone)
        assert not gridwise.world().transport._begun  # nothing is kept

    in_small_buckets(body)


@workers(2)
def test_layers_on_their_own_begin_early_too() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([2, 1])
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(gridwise.nn.DistributedLinear(P_x, 6, 6) for _ in range(3))).double()
    torch.manual_seed(0)
    alone = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(3))).double()
    alone.load_state_dict({name: value.as_subclass(Tensor) for name, value in layers.state_dict().items()})
    order: list[str] = []
    begin = gradient_buckets._Begun.backward
    end = gradient_buckets._Ended.backward
    gradient_buckets._Begun.backward = staticmethod(lambda *args: (order.append("begun"), begin(*args))[1])
    gradient_buckets._Ended.backward = staticmethod(lambda *args: (order.append("ended"), end(*args))[1])
    x = torch.randn(4, 6, dtype=torch.float64)
    try:
        layers(own(x)).sum().backward()
    finally:
        gradient_buckets._Begun.backward, gradient_buckets._Ended.backward = begin, end
    alone(x).sum().backward()
    assert len(order) >= 6
    assert order == ["begun"] * (len(order) // 2) + ["ended"] * (len(order) // 2)
    same_gradients(layers, alone)


@workers(2, 3)
@pytest.mark.parametrize("wire", [torch.bfloat16, torch.float16])
def test_half_precision_on_the_wire(wire: torch.dtype) -> None:
    model, alone, x = made()
    with gridwise.gradient_wire(wire):
        y = model(own(x)).pow(2).sum()
    y.backward()  # what counts is what was set when the model was called
    alone(x).pow(2).sum().backward()
    bits = {torch.bfloat16: 8, torch.float16: 11}[wire]
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        if theirs.grad is not None:
            error = (mine.grad - theirs.grad).abs().max() / theirs.grad.abs().max()
            assert 0 < error < 2.0 ** (1 - bits)
    model.zero_grad()
    alone.zero_grad()
    model(own(x)).pow(2).sum().backward()
    alone(x).pow(2).sum().backward()
    same_gradients(model, alone)


@workers(2)
def test_another_wire_on_one_worker_is_refused() -> None:
    model, _, x = made()
    layer = gridwise.nn.DistributedLinear(gridwise.world().create_cartesian_topology_partition([2, 1]), 24, 3).double()
    model(own(x))
    layer(own(x))
    with gridwise.gradient_wire(torch.bfloat16 if gridwise.world().rank else None):
        for called in (model, layer):
            with pytest.raises(PartitionError, match=r"(?s)mode.*worker.*gradient_wire: torch.bfloat16"):
                called(own(x))


@workers(2)
def test_layers_take_the_wire() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([2, 1, 1, 1])
    torch.manual_seed(0)
    layer = gridwise.nn.DistributedConv2d(P_x, 16, 32, 3, padding=1)
    x = torch.randn(2, 16, 8, 8)
    found = []
    for wire in (None, torch.bfloat16):
        layer.zero_grad()
        with gridwise.gradient_wire(wire):
            layer(x).sum().backward()
        found.append(layer.weight.grad.clone())
    error = (found[0] - found[1]).abs().max() / found[0].abs().max()
    assert 0 < error < 2.0**-7


def test_a_wire_that_is_none() -> None:
    with pytest.raises(PartitionError, match="float64"), gridwise.gradient_wire(torch.float64):
        pass
