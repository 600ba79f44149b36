"""A distributed model as an object: what is set later, methods, copies, wrappers, one error on all workers."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.models.recording.containers import flatten
from gridwise.testing import workers


def partition(*grid: int) -> Any:
    return gridwise.world().create_cartesian_topology_partition(grid)


def block(x: Tensor, P: Any) -> Tensor:
    return x[gridwise.local_slice(P, x.shape)].clone() if P is not None else x


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


OFFSET = 1.0


class Settings:
    """What some models keep their numbers in."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Net(nn.Module):
    gain = 1.5

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.sizes = 2.0, [1, 2]
        self.config, self.parts = Settings(inner=Settings(scale=1.0)), [Settings(shift=0.0)]
        self.table = np.array([0.5, 0.25])
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))

    def encode(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = scale * self.alpha * self.norm(self.conv(x)) * self.sizes[1] * self.gain + self.parts[0].shift
        return y * self.config.inner.scale + float(self.table.sum()) * OFFSET

    def decode(self, z: Tensor) -> Tensor:
        return self.head(z.relu())


def pair(**said: Any) -> tuple[Any, Net, Tensor, Any]:
    torch.manual_seed(0)
    P, sequential = partition(1, 1, 2, 1), Net().double()
    return gridwise.distribute(copy.deepcopy(sequential), P, **said), sequential, random(3, 2, 6, 4), P


def both_equal(model: Any, sequential: nn.Module, x: Tensor, P: Any) -> None:
    y, expected = model(block(x, P)), sequential(x)
    torch.testing.assert_close(y, block(expected, model.P_y))


def doubled(module: nn.Module) -> None:
    class Twice(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return 2 * w

    nn.utils.parametrize.register_parametrization(module.head, "weight", Twice())  # type: ignore[union-attr,arg-type]


LATER: dict[str, Any] = {
    "an attribute": lambda m: setattr(m, "alpha", 3.0),
    "an element of a list": lambda m: m.sizes.__setitem__(1, 5),
    "an attribute of a part": lambda m: setattr(m.norm, "momentum", 0.5),
    "a setting of a setting": lambda m: setattr(m.config.inner, "scale", 0.5),
    "a setting in a list": lambda m: setattr(m.parts[0], "shift", 0.5),
    "an element of an array": lambda m: m.table.__setitem__(1, 5.0),
    "a number of the class": lambda m: setattr(Net, "gain", Net.gain + 1.0),
    "a global variable": lambda m: Net.encode.__globals__.update(OFFSET=OFFSET + 1.0),
    "the mode": lambda m: m.eval(),
    "the mode of a part": lambda m: m.norm.eval(),
    "what is frozen": lambda m: m.conv.requires_grad_(False),
    "the dtype": lambda m: m.float(),
    "a state": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "a state by assignment": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True),
    "a parametrization": doubled,
    "a module": lambda m: setattr(m, "head", nn.Identity()),
    "a parameter": lambda m: setattr(m.head, "bias", None),
    "a hook": lambda m: m.head.register_forward_hook(lambda module, given, y: 3 * y),
}


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", LATER)
def test_what_is_set_later_is_not_ignored(name: str) -> None:
    model, sequential, x, P = pair()
    both_equal(model, sequential, x, P)
    for each in (model, sequential):
        LATER[name](each)
    x = x.to(next(sequential.parameters()).dtype)
    for _ in range(2):
        both_equal(model, sequential, x, P)


@workers(2, transports=("mpi",))
def test_what_is_set_on_one_worker_is_an_error_on_all() -> None:
    model, _, x, P = pair()
    model(block(x, P))
    model.alpha = 2.0 + gridwise.world().rank
    with pytest.raises(PartitionError, match="does not do the same on all workers"):
        model(block(x, P))
    model.alpha = 2.0
    model(block(x, P))
    model.train(bool(gridwise.world().rank))
    with pytest.raises(PartitionError, match="not in the same mode on all workers"):
        model(block(x, P))


@workers(2, transports=("mpi",))
def test_a_recording_is_kept_for_each_structure() -> None:
    from unittest.mock import patch

    model, sequential, x, P = pair()
    runner = model._distributed.runners["forward"]
    with patch.object(type(runner), "record", autospec=True, side_effect=type(runner).record) as record:
        for _ in range(2):
            for rows in (6, 5):
                for mode in (True, False):
                    both_equal(model.train(mode), sequential.train(mode), x[:, :, :rows], P)
        assert record.call_count == 4
        with torch.no_grad():
            both_equal(model, sequential, x, P)
        model(block(x, P).requires_grad_())
        assert record.call_count == 6


@workers(4, transports=("mpi",))
def test_batches_of_any_size_and_what_is_left_of_the_last() -> None:
    """Recorded once for each size, kept, and equal, fewer samples than workers too."""
    from unittest.mock import patch

    torch.manual_seed(0)
    for grid in ((4, 1, 1, 1), (2, 1, 2, 1)):
        P, sequential = partition(*grid), Net().double()
        model = gridwise.distribute(copy.deepcopy(sequential), P, example=(8, 2, 6, 4))
        runner = model._distributed.runners["forward"]
        with patch.object(type(runner), "record", autospec=True, side_effect=type(runner).record) as record:
            for size in (8, 5, 8, 3, 1, 5, 8):
                x = torch.randn((size, 2, 6, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(size))
                given, whole = block(x, P).requires_grad_(), x.clone().requires_grad_()
                y, expected = model(given), sequential(whole)
                torch.testing.assert_close(y, block(expected, model.P_y))
                y.square().sum().backward()
                expected.square().sum().backward()
                torch.testing.assert_close(given.grad, block(whole.grad, P))
            assert record.call_count == 4, "8, 5, 3 and 1; the example's needs no gradient of its input"
        for p, q in zip(model.parameters(), sequential.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        for b, c in zip(model.buffers(), sequential.buffers(), strict=True):
            torch.testing.assert_close(b, c)


@workers(2, transports=("mpi",))
def test_methods_share_parameters() -> None:
    model, sequential, x, P = pair(methods=("encode", "decode"), example={"decode": (3, 4, 6, 4)})
    assert model.P_of("decode").shape == (1, 1, 2, 1)
    z, expected = model.encode(block(x, P), scale=3.0), sequential.encode(x, scale=3.0)
    torch.testing.assert_close(z, block(expected, model.P_of("encode")))
    y = model.decode(z)
    torch.testing.assert_close(y, block(sequential.decode(expected), model.P_of("decode")))
    y.square().sum().backward()
    sequential.decode(expected).square().sum().backward()
    for mine, whole in zip(model.parameters(), sequential.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, whole.grad)
    with pytest.raises(UnsupportedError, match=r"conv \(Conv2d\) is a part of a distributed model"):
        model.conv(block(x, P))
    plain = gridwise.distribute(copy.deepcopy(sequential), P)
    with pytest.raises(PartitionError, match=r"methods=\('encode',\)"):
        plain.P_of("encode")
    with pytest.raises(UnsupportedError, match=r"methods=\('encode',\)"):
        plain.encode(block(x, P))
    with pytest.raises(PartitionError, match="has no method 'sample'"):
        gridwise.distribute(copy.deepcopy(sequential), P, methods=("sample",))


@workers(2, transports=("mpi",))
def test_the_loss_too() -> None:
    torch.manual_seed(0)
    P, P_t = partition(1, 1, 2, 1), partition(1, 2, 1)
    sequential = Net().double()
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    x, t = random(3, 2, 6, 4), torch.randint(2, (3, 6, 4), generator=torch.Generator().manual_seed(2))
    loss = gridwise.distribute(
        lambda x, t: F.cross_entropy(model(x), t) + 0.1 * sum(p.abs().sum() for p in model.parameters()), P, t=P_t
    )
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, sequential)]
    for _ in range(3):
        expected = F.cross_entropy(sequential(x), t) + 0.1 * sum(p.abs().sum() for p in sequential.parameters())
        value = loss(block(x, P), block(t, P_t))
        torch.testing.assert_close(value, expected)
        assert loss.P_y is None
        for optimizer, each in zip(optimizers, (value, expected), strict=True):
            optimizer.zero_grad()
            each.backward()
            optimizer.step()
    for mine, whole in zip(model.state_dict().values(), sequential.state_dict().values(), strict=True):
        torch.testing.assert_close(mine.as_subclass(Tensor), whole)


@workers(2, transports=("mpi",))
def test_an_example_records_at_once() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    P, x = partition(1, 1, 2, 1), random(1, 2, 6, 4)
    with pytest.raises(UnsupportedError, match="needs the numbers of a tensor"):
        gridwise.distribute(Odd(), P, example=x.shape)
    late = gridwise.distribute(Odd(), P)
    with pytest.raises(PartitionError, match="known after the first call"):
        _ = late.P_y
    for example in ((1, 2, 6, 4), x, (x,), {"x": x}, {"x": (1, 2, 6, 4)}):
        model = gridwise.distribute(Net().double(), P, example=example)
        assert model.P_y.shape == (1, 1, 2, 1)
    assert "nothing is gathered" in str(model.report())
    with pytest.raises(PartitionError, match="cannot take a global input of shape"):
        gridwise.distribute(Net(), P, example={"x": (1, 3, 6, 4)})


@workers(2, transports=("mpi",))
def test_copies_pickles_and_wrappers() -> None:
    model, sequential, x, P = pair()
    twin = copy.deepcopy(model)
    both_equal(twin, sequential, x, P)
    assert twin.conv.weight is not model.conv.weight
    assert [n for n, _ in twin.named_parameters()] == [n for n, _ in sequential.named_parameters()]
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(model)
    with pytest.raises(UnsupportedError, match="is already distributed"):
        gridwise.distribute(nn.Sequential(model), P)
    with pytest.raises(UnsupportedError, match="`forward` was recorded"):
        model.forward = lambda x: x
    outer = nn.Sequential(model, nn.ReLU())
    sequential.norm.reset_running_stats()
    torch.testing.assert_close(outer(block(x, P)), block(sequential(x).relu(), model.P_y))


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"a": self.drop(x), "b": (x, None)}


@workers(3, transports=("mpi",))
def test_workers_outside() -> None:
    world = gridwise.world()
    P = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition((1, 1, 2, 1))
    sequential = nn.Sequential(Net(), Several()).double()
    model = gridwise.distribute(copy.deepcopy(sequential), P, example=torch.empty(1, 2, 6, 4, dtype=torch.float64))
    x = random(1, 2, 6, 4)
    states = []
    for mode in (True, False, True):
        y = model.train(mode)(block(x, P) if P.active else gridwise.zero_volume_tensor(dtype=torch.float64))
        assert list(y) == ["a", "b"]
        assert (y["b"][0].numel() == 0) != P.active
        (y["a"].sum() + y["b"][0].sum()).backward()
        states.append(int(torch.randint(1 << 30, ())))
    assert len(set(world.allgather_data(states).ravel().tolist())) == 3  # all have drawn as often
    for name, value in model.state_dict().items():
        assert (value.numel() == 0) != P.active, name
    gridwise.check_replicas(model)
    model.load_state_dict(sequential.state_dict())
    gridwise.check_replicas(model)


def test_data_parallelism_around_a_distributed_model_is_refused() -> None:
    model = gridwise.distribute(Net(), partition(1, 1, 1, 1))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for wrapped in (model, nn.Sequential(nn.Identity(), nn.Sequential(model))):
            with pytest.raises(UnsupportedError, match="already; DistributedDataParallel around it"):
                nn.parallel.DistributedDataParallel(wrapped)
        holder = nn.Linear(1, 1)
        holder.loss_of = gridwise.distribute(lambda x: holder(x).mean(), partition(1, 1))
        with pytest.raises(UnsupportedError, match=r"DistributedFunction, loss_of of Linear, is distributed already"):
            nn.parallel.DistributedDataParallel(holder)
        nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    finally:
        torch.distributed.destroy_process_group()


@workers(1, 2)
def test_what_a_call_takes_and_makes_is_gone_with_the_last_who_holds_it() -> None:
    """Without waiting for the garbage collector: it would be the memory of a device."""
    P = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])
    layers = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()).double()
    model = gridwise.distribute(layers, P)
    for _ in range(3):
        model(random(1, 1, 4, 4)).sum().backward()
    gc.collect()
    gc.disable()
    try:
        x = random(1, 1, 4, 4).requires_grad_()
        y = model(x)
        y.sum().backward()
        left = [weakref.ref(tensor) for tensor in (x, y, x.grad)]
        del x, y
        assert [each() is None for each in left] == [True] * 3
    finally:
        gc.enable()


def test_a_value_that_was_flattened_is_not_held() -> None:
    gc.collect()
    gc.disable()
    try:
        x = torch.ones(2)
        left = weakref.ref(x)
        flatten({"x": [x]})
        del x
        assert left() is None
    finally:
        gc.enable()
