"""A step as pieces with movements between them, without a GPU: graphs that record ATen operators take the place of CUDA's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from captured_nets import HandBuilt, Net
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import gridwise
from gridwise.comm.graph_breaks import capturing
from gridwise.comm.transports.base import Transport
from gridwise.errors import UnsupportedError
from gridwise.nn.engine import graph_pieces
from gridwise.nn.engine.graph_pieces import Pieces
from gridwise.testing import workers

CPU = torch.device("cpu")


class RecordedGraph:
    """Takes up operators, and leaves all memory as it was until it is replayed, as a CUDA graph does."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def begin(self) -> None:
        Recording.current = self

    def add(self, func: Any, args: Any, kwargs: Any) -> Any:
        for x in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and x.numel():
                memory = x.untyped_storage()
                self.before.setdefault(memory.data_ptr(), (memory, memory.clone()))
        made = func(*args, **kwargs)
        if "random_" not in str(func):  # the host draws keys, and no CUDA graph sees that
            self.calls.append(lambda: again(func, args, kwargs, made))
        return made

    def end(self) -> None:
        Recording.current = None
        for memory, before in self.before.values():
            memory.copy_(before)

    def replay(self) -> None:
        for call in self.calls:
            call()


class Recording(TorchDispatchMode):
    """Gives operators to the graph that is being captured; one for all, since backward goes on under that of its start."""

    current: RecordedGraph | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Recording.current is None:
            return func(*args, **(kwargs or {}))
        return Recording.current.add(func, args, kwargs or {})


def again(func: Any, args: Any, kwargs: Any, made: Any) -> None:
    """Run an operator into the memory of its last results; autograd, as of a CUDA graph, does not hear of it."""
    args, kwargs, made = torch.utils._pytree.tree_map_only(Tensor, lambda x: x.data, (args, kwargs, made))
    new = func(*args, **kwargs)
    pairs = zip(made, new, strict=True) if isinstance(made, tuple | list) else [(made, new)]
    for old, fresh in pairs:
        if isinstance(old, Tensor) and old.data_ptr() != fresh.data_ptr():
            old.copy_(fresh)


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """A graph sees nothing of what the host does by itself."""
    all_max = Transport.all_max

    def unseen(*args: Any) -> None:
        with _disable_current_modes():
            all_max(*args)

    Transport.all_max = unseen  # type: ignore[method-assign]
    try:
        with Recording():
            yield
    finally:
        Recording.current = None
        Transport.all_max = all_max  # type: ignore[method-assign]


def made_twice(kind: str) -> list[tuple[torch.nn.Module, Callable[[Tensor], Tensor]]]:
    """Two equal models, each with a step of its own."""
    P = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = HandBuilt(P) if kind == "layers" else gridwise.distribute(Net(), P)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        found.append((model, step_of(model, optimizer)))
    return found


def step_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@workers(1, 2, 3)
@pytest.mark.parametrize("kind", ["layers", "model"])
def test_replays_are_uncaptured_steps(kind):
    (model, step), (twin, plain) = made_twice(kind)
    batches = [torch.randn(2, 1, 4 + 3 * gridwise.world().rank, 9) for _ in range(6)]
    torch.manual_seed(1)
    expected = [plain(x) for x in batches]
    drawn = torch.rand(())
    torch.manual_seed(1)
    with as_on_a_device():
        losses = [step(x) for x in batches[:2]]
        pieces, static = Pieces(CPU, RecordedGraph), batches[2].clone()
        loss = pieces.capture(lambda: step(static))
        losses.append(loss.clone())
        for x in batches[3:]:
            static.copy_(x)
            pieces.replay()
            losses.append(loss.clone())
    assert drawn == torch.rand(())  # as many random numbers as without a capture
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert (pieces.graphs > 1) == (gridwise.world().size > 1)
    assert capturing() is None


@workers(1, 2)
def test_each_replay_has_a_mask_of_its_own():
    P = gridwise.world().create_cartesian_topology_partition([gridwise.world().size, 1])
    drop, x = gridwise.nn.DistributedDropout(P, 0.5), torch.ones(8, 16)
    torch.manual_seed(3)
    expected = [drop(x) for _ in range(4)]
    torch.manual_seed(3)
    pieces = Pieces(CPU, RecordedGraph)
    with as_on_a_device():
        mask = pieces.capture(lambda: drop(x))
    found = [mask.clone()]
    for _ in range(3):
        pieces.replay()
        found.append(mask.clone())
    assert all(map(torch.equal, found, expected))
    assert not any(torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])


@workers(2)
def test_every_kind_of_movement_is_made_again():
    world = gridwise.world()
    transport, team = world.transport, world.team
    x = torch.arange(3.0) + world.rank

    def moved() -> list[Tensor | None]:
        copied, summed = x + 1, x * 2
        transport.copy_from(copied, 0, team)
        request = transport.post_sum(summed, team)
        meanwhile = x - 1
        request.wait()
        rows = transport.all_gather(x * 3, team)
        first = transport.sum_to(x + 5, 0, team)
        arrived = torch.empty(3)
        transport.exchange([(1 - world.rank, x + 2)], [(1 - world.rank, arrived)])
        return [transport.all_sum(x, team), copied, summed, meanwhile, rows, first, arrived]

    pieces = Pieces(CPU, RecordedGraph)
    with as_on_a_device():
        made = pieces.capture(moved)
    for _ in range(2):
        x.mul_(2).add_(1)
        pieces.replay()
        for found, wanted in zip(made, moved(), strict=True):
            assert (found is None) == (wanted is None)
            assert found is None or torch.equal(found, wanted)


def test_a_step_that_fails_leaves_nothing_behind():
    def fails(x: Tensor) -> Tensor:
        raise ValueError(f"{x.sum()}")

    with pytest.raises(ValueError, match="3"), as_on_a_device():
        Pieces(CPU, RecordedGraph).capture(lambda: fails(torch.ones(3)))
    assert capturing() is None
    assert torch.ones(2).sum() == 2


def test_too_many_keys_are_refused(monkeypatch):
    monkeypatch.setattr(graph_pieces, "MOST_KEYS", 2)
    drop = gridwise.nn.DistributedDropout(gridwise.world().create_cartesian_topology_partition([1]), 0.5)
    with pytest.raises(UnsupportedError, match="more than 2 random keys"):
        Pieces(CPU, RecordedGraph).capture(lambda: [drop(torch.ones(4)) for _ in range(3)])
