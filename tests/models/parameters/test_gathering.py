"""When parameters that are cut are gathered and freed, and what autograd may do with them."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.models.parameters.group import GatherGroup
from gridwise.testing import workers

from .test_cut import Image, loss_of, made, same, small_messages, train


class Watch:
    """The gathers of a body: the names of their parameters, and what has been gathered and is alive."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.wholes: list[Any] = []

    @property
    def alive(self) -> int:
        return sum(whole() is not None for whole in self.wholes)


@contextmanager
def watched() -> Iterator[Watch]:
    watch, begin = Watch(), GatherGroup.begin

    def noted(self: GatherGroup, blocks: Any) -> Any:
        pending, wholes = begin(self, blocks)
        watch.names.append(self.name.partition(" of ")[0])
        watch.wholes += map(weakref.ref, wholes)
        return pending, wholes

    GatherGroup.begin = noted  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        GatherGroup.begin = begin  # type: ignore[method-assign]


@workers(2, transports=("mpi",))
def test_nothing_is_kept_between_forward_and_backward_nor_after_it() -> None:
    for casts in (False, True):
        with small_messages(), watched() as watch:
            model, _, x, _ = made("tokens", prefetch_bytes=2000)
            most: list[int] = []
            for _ in range(3):
                watch.names.clear()
                with torch.autocast("cpu", torch.bfloat16, enabled=casts):
                    y = model(x)
                assert not watch.alive
                first = list(watch.names)
                y.register_hook(lambda _, watch=watch, most=most: most.append(watch.alive))
                loss_of(y.double()).backward()
                assert not watch.alive
                again = watch.names[len(first) :]
                assert {*again} < {*first}
                assert "blocks.0.mix.in_proj_weight" in again
            assert not any(most)


@workers(2, transports=("mpi",))
def test_one_gather_runs_ahead_in_both_directions() -> None:
    with small_messages():
        model, _, x, _ = made("tokens", prefetch_bytes=6000)
        loss_of(model(x)).backward()  # learns the order
        order: list[str] = []
        transport, move = gridwise.world().transport, gridwise.world().transport.move

        def noted(sends: Any, receives: Any, dtype: Any, what: str = "", add: bool = False) -> Any:
            pending, what = move(sends, receives, dtype, what, add), what.partition(" of the distributed ")[0]
            if not what.startswith("the g"):
                return pending
            order.append(f"+{what}")

            class Noted:
                def wait(self) -> None:
                    order.append(f"-{what}")
                    pending.wait()

            return Noted()

        transport.move = noted  # type: ignore[method-assign]
        try:
            y = model(x)
            forward, backward = list(order), order
            order.clear()
            loss_of(y).backward()
        finally:
            del transport.move
        for direction in (forward, [each for each in backward if "gradient" not in each]):
            under_way = [sum(1 if each[0] == "+" else -1 for each in direction[: n + 1]) for n in range(len(direction))]
            assert max(under_way) >= 3
            assert under_way[-1] == 0


@workers(4, transports=("mpi",))
def test_workers_with_an_empty_batch_take_part() -> None:
    with small_messages():
        torch.manual_seed(0)
        alone = Image().double()
        alone.norm = nn.Identity()
        P_x = gridwise.world().create_cartesian_topology_partition([4, 1, 1, 1])
        model = gridwise.distribute(copy.deepcopy(alone), P_x, parameters="cut", prefetch_bytes=3000)
        x = torch.randn(2, 2, 8, 6, dtype=torch.float64)
        block = x[gridwise.local_slice(P_x, x.shape)].clone()
        for _ in range(2):
            train(model, alone, block, x, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3), steps=1)


@workers(2, transports=("gloo",))
def test_what_autograd_may_do() -> None:
    with small_messages():
        model, alone, x, whole = made("tokens", prefetch_bytes=3000)
        # accumulation, two calls in one backward, retained graphs
        for each, given in ((model, x), (alone, whole)):
            loss_of(each(given)).backward()
            (loss_of(each(given)) + loss_of(each(2 * given))).backward()
            y = loss_of(each(given))
            y.backward(retain_graph=True)
            y.backward()
        same(model, alone)
        # without gradients
        with torch.no_grad():
            block = model.P_x
            torch.testing.assert_close(model(x), alone(whole)[gridwise.local_slice(block, whole.shape)])
        with torch.autograd.graph.save_on_cpu():
            y = loss_of(model(x))
        model.zero_grad()
        alone.zero_grad()
        y.backward()
        loss_of(alone(whole)).backward()
        same(model, alone)
        # freezing and unfreezing, and groups that are added later
        frozen = [model.blocks[0].mix, alone.blocks[0].mix]
        for part in frozen:
            part.requires_grad_(False)
        optimizers = [torch.optim.SGD(each.head.parameters(), lr=1e-4, momentum=0.9) for each in (model, alone)]
        for step in range(2):
            for each, given, optimizer, part in zip((model, alone), (x, whole), optimizers, frozen, strict=True):
                each.zero_grad()
                loss_of(each(given)).backward()
                optimizer.step()
                if not step:
                    part.requires_grad_(True)
                    optimizer.add_param_group({"params": list(part.parameters()), "lr": 1e-5})
            same(model, alone)


@workers(2, transports=("gloo",))
def test_hooks_and_gradients_of_gradients() -> None:
    with small_messages():
        model, alone, x, whole = made("image", prefetch_bytes=3000)
        seen: list[Tensor] = []
        weight, theirs = model.deep.weight, alone.deep.weight
        handle = weight.register_hook(lambda g: seen.append(g.clone()))
        (mine,) = torch.autograd.grad(loss_of(model(x)), [weight], create_graph=True)
        (expected,) = torch.autograd.grad(loss_of(alone(whole)), [theirs], create_graph=True)
        handle.remove()
        torch.testing.assert_close(mine.detach(), weight.sharding.cut(expected.detach(), gridwise.world().rank))
        torch.testing.assert_close(seen[0].detach(), mine.detach())
        mine.square().sum().backward()
        expected.square().sum().backward()
        same(model, alone)


@workers(2, transports=("gloo",))
def test_parameters_changed_before_backward_are_an_error() -> None:
    model, _, x, _ = made("image")
    y = loss_of(model(x))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: a parameter of a distributed model"):
        y.backward()


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.9)
        return x @ self.weight


@workers(2, transports=("gloo",))
def test_refusals() -> None:
    P = gridwise.world().create_cartesian_topology_partition([2, 1])
    with pytest.raises(UnsupportedError, match="changes weight in `forward`"):
        gridwise.distribute(Changing(), P, parameters="cut", example=(4, 4))
    net = nn.Linear(4, 4)
    before = torch.optim.SGD(net.parameters(), lr=0.1)
    model = gridwise.distribute(net, P, parameters="cut")
    with pytest.raises(PartitionError, match=r"this SGD was made before distribute\(..., parameters='cut'\)"):
        before.step()
    assert [p.numel() for p in before.param_groups[0]["params"]] == [0, 0]
    assert all(p is q for p, q in zip(net.parameters(), model.parameters(), strict=True))
    whole = nn.Linear(4, 4)
    gridwise.distribute(whole, P)
    with pytest.raises(PartitionError, match="`weight` is whole in a model that was distributed before"):
        gridwise.distribute(whole, P, parameters="cut")
    with pytest.raises(PartitionError, match=r"`parameters` \(='half'\) must be 'whole' or 'cut'"):
        gridwise.distribute(nn.Linear(4, 4), P, parameters="half")  # type: ignore[arg-type]
    with pytest.raises(PartitionError, match=r"`prefetch_bytes` \(='many'\)"):
        gridwise.distribute(nn.Linear(4, 4), P, parameters="cut", prefetch_bytes="many")
