"""No primitive holds more than its input, its output and one packed copy of what it sends and receives.

No windowed layer keeps a padded copy of its block for backward.
"""

from __future__ import annotations

import weakref

import pytest
import torch
from roads import keeping
from torch.utils._python_dispatch import TorchDispatchMode

import gridwise
from gridwise import nn
from gridwise.comm.node.segment import CHUNK
from gridwise.testing import workers


class FreshMemory(TorchDispatchMode):
    """Adds up the bytes of all memory that operators make, freed again or not."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {
            x.untyped_storage().data_ptr()
            for x in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        for x in torch.utils._pytree.tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in known:
                self.nbytes += x.untyped_storage().nbytes()
        return result


@pytest.fixture
def on_the_host(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--gridwise-device") != "cpu":
        pytest.skip("on a device there is pinned memory besides")


@workers(2, 4)
@pytest.mark.usefixtures("on_the_host")
@pytest.mark.parametrize("rows", [8, 1024], ids=["messages", "shared memory"])
def test_what_a_movement_allocates(rows):
    world = gridwise.world()
    n = world.size
    P_x, P_y = (world.create_cartesian_topology_partition(shape) for shape in ([n, 1], [1, n]))
    x = torch.ones(rows, 1024)
    for layer in (nn.Repartition(P_x, P_y), nn.HaloExchange(P_x, [(3, 3), (0, 0)]), nn.AllGather(P_x, (0,))):
        y = layer(x)
        plan = layer._operator.plan
        sent, received = (4 * sum(m.volume for m in ms) for ms in (plan.sends, plan.receives))
        with FreshMemory() as forward:
            layer._operator(x)
        assert forward.nbytes <= y.nbytes + sent + received
        with FreshMemory() as backward:
            layer._operator.adjoint(y)
        assert backward.nbytes <= x.nbytes + sent + received


@workers(2, 4)
@pytest.mark.usefixtures("on_the_host")
def test_a_sum_allocates_its_result_and_what_others_send_at_a_time():
    layer = nn.AllSumReduce(gridwise.world(), (0,))
    for count in (100, 1 << 20):
        x = torch.ones(count)
        layer(x)
        with FreshMemory() as spent:
            layer._operator(x)
        size = gridwise.world().size
        few = 4 * size * x.nbytes if count == 100 else 0  # everyone's numbers, and those on their way
        assert spent.nbytes <= x.nbytes + few + (size - 1) * min(x.nbytes, CHUNK)


class LiveMemory(TorchDispatchMode):
    """Adds up the bytes of memory that operators have made and that is still held."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes, self.known = 0, weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {id(x.untyped_storage()) for x in torch.utils._pytree.tree_leaves((args, kwargs)) if is_dense(x)}
        result = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(result):
            storage = x.untyped_storage() if is_dense(x) else None
            if storage is not None and id(storage) not in given and storage not in self.known:
                self.known.add(storage)
                self.nbytes += storage.nbytes()
                weakref.finalize(storage, self.freed, storage.nbytes())
        return result

    def freed(self, nbytes: int) -> None:
        self.nbytes -= nbytes


def is_dense(x):
    return isinstance(x, torch.Tensor)


def received_by(layer):
    return 4 * sum(message.volume for message in layer._part.fetch.plan.receives)


def stack_of_convolutions(mode):
    """A function that runs one, and says what is kept then; what activations and halos take."""
    n = gridwise.world().size
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, n, 1])
    torch.manual_seed(0)
    layers = [nn.DistributedConv2d(P_x, 8, 8, 3, padding=1, padding_mode=mode) for _ in range(4)]
    x = torch.ones(2, 8, 128, 256, requires_grad=True)

    def run():
        with LiveMemory() as memory:
            y = x
            for layer in layers:
                y = layer(y).relu()
            return memory.nbytes, y, memory

    run()  # the first call plans
    return run, len(layers) * x.nbytes, sum(map(received_by, layers))


@workers(2, 4)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
def test_a_stack_of_padded_convolutions_keeps_activations_and_halos_only(mode):
    run, activations, halos = stack_of_convolutions(mode)
    with keeping(nothing=False):
        more, *_ = run()
    kept, y, memory = run()
    assert kept <= activations + halos + 100_000  # and weights in their own layout, counts, handles
    assert more >= 1.9 * activations
    y.sum().backward()
    del y
    assert memory.nbytes <= 200_000


@workers(2)
@pytest.mark.parametrize("name", ["conv", "transposed", "maximum", "average", "adaptive"])
def test_a_layer_keeps_what_the_sequential_one_keeps(name):
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    layer, output_and_indices = {
        "conv": (lambda: nn.DistributedConv2d(P_x, 8, 4, 3, 2, 1), 0.125),
        "transposed": (lambda: nn.DistributedConvTranspose2d(P_x, 8, 8, 3, padding=1), 1),
        "maximum": (lambda: nn.DistributedMaxPool2d(P_x, 3, 2, 1), 0.25 * 3),
        "average": (lambda: nn.DistributedAvgPool2d(P_x, 3, 2, 1), 0.25),
        "adaptive": (lambda: nn.DistributedAdaptiveAvgPool2d(P_x, (91, 66)), 0.1),
    }[name]
    layer = layer()
    x = torch.ones(2, 8, 128, 256, requires_grad=True)
    y = layer(x)
    with LiveMemory() as memory:
        y = layer(x)
        kept = memory.nbytes
    assert y.nbytes <= kept <= output_and_indices * x.nbytes + received_by(layer) + 100_000
