"""Memory of plans: the peak of a step is that of torch's allocator on real workers, within 10 %."""

from __future__ import annotations

import sys
from pathlib import Path

import programs
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

import gridwise
from gridwise.planning.memory import Memory
from gridwise.testing import workers

sys.path.insert(0, str(Path(__file__).parents[2]))  # for the zoo

ZOO = (
    "dcgan_d", "sngan_d_old", "pix2pix_unet", "cyclegan_resnet", "milesial_unet", "vanilla_vae", "espcn", "edsr", "dncnn",
    "convlstm_zeros",
)  # fmt: skip


def convolutions() -> torch.nn.Module:
    parts = [part for _ in range(3) for part in (torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts)


def built(name):
    from zoo.classics import CLASSICS

    if name == "convolutions":
        return convolutions(), (2, 16, 128, 128)
    if name == "unet":
        return programs.UNet(), (2, 3, 256, 256)
    make, shape = CLASSICS[name]
    return make(), shape or (2, 3, 64, 64)


def measured_peak(model, x, optimizer):
    """The most that the allocator had handed out in a step, with what was there before it."""

    def step():
        y = model(x)
        ends = [end for end in tree_leaves(y) if isinstance(end, torch.Tensor) and end.requires_grad]
        torch.autograd.backward(ends, [torch.empty_like(end) for end in ends])
        del y, ends
        optimizer.step()

    step()
    optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    held = peak = 0
    for event in sorted(record.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    states = [s for state in optimizer.state.values() for s in state.values() if isinstance(s, torch.Tensor)]
    return peak + sum(t.nbytes for t in (*model.parameters(), *model.buffers(), x, *states))


def compared(name, grid):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, shape = built(name)
    grid = (*grid, *[1] * (len(shape) - len(grid)))
    plan = gridwise.plan(model, grid, shape, optimizer=torch.optim.Adam)
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    placed, x = gridwise.distribute(model, P_x), gridwise.scatter(torch.randn(shape), P_x)
    peak = measured_peak(placed, x, torch.optim.Adam(placed.parameters()))
    assert plan.worker(gridwise.world().rank).memory == pytest.approx(peak, rel=0.1)


@workers(2, transports=["gloo"])
@pytest.mark.parametrize("name", ["convolutions", "unet", "edsr"])
def test_the_peak_is_that_of_the_allocator(name):
    compared(name, (1, 1, 2))


@pytest.mark.soak
@workers(2, transports=["gloo"])
@pytest.mark.parametrize("name", ZOO)
def test_so_it_is_for_models_of_the_zoo(name):
    compared(name, (1, 1, 2))


@pytest.mark.soak
@workers(4, transports=["gloo"])
@pytest.mark.parametrize("name", ZOO)
def test_so_it_is_on_four_workers(name):
    compared(name, (1, 1, 2, 2))


def test_the_curve_and_who_holds_its_peak():
    memory = Memory()
    memory.at = "first", "forward"
    a = torch.empty(100, device="meta")
    memory.add([a, a.view(10, 10)])  # one piece of memory
    memory.at = "second", "forward"
    b = torch.empty(50, device="meta")
    memory.add([b], workspace=80)
    del b
    assert [(m.layer, m.peak, m.after) for m in memory.curve()] == [("first", 400, 400), ("second", 680, 400)]
    assert [(h.layer, h.bytes) for h in memory.holders()] == [("first", 400), ("second", 280)]
    assert memory.peak == 680
    del a
    assert memory.allocated == 0


def test_states_of_the_optimiser_take_memory():
    plans = [
        gridwise.plan(programs.Net(), (1, 1, 2, 1), programs.INPUT, optimizer=optimizer)
        for optimizer in (None, torch.optim.SGD, torch.optim.Adam)
    ]
    none, sgd, adam = (plan.workers[0] for plan in plans)
    weights = sum(p.nbytes for p in programs.Net().parameters())
    assert none.states == sgd.states == 0
    assert adam.states == 2 * weights + 4 * len(list(programs.Net().parameters()))  # and a number of steps each
    assert adam.memory >= none.memory + adam.states


def test_memory_on_cuda_is_in_blocks_and_its_optimisers_take_all_parameters_at_once():
    """As torch's caching allocator rounds; Adam makes the square roots of all second moments together there."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000, bias=False) for _ in range(4)))
    cpu, cuda = (
        gridwise.plan(model, (1, 1), (1, 1000), optimizer=torch.optim.Adam, machine=machine).workers[0]
        for machine in ("epyc-7763-node", "nvidia-h100")
    )
    weights = 4 * 1000 * 1000 * 4
    assert (cpu.parameters, cuda.parameters) == (weights, 4 * 7813 * 512)
    assert cpu.states == 2 * weights + 4 * 4
    assert cuda.states == 2 * cuda.parameters  # how many steps were made stays on the host
    assert cuda.memory % 512 == 0
    assert cpu.memory - cpu.parameters - cpu.states < 2 * weights
    assert cuda.memory - cuda.parameters - cuda.states >= 2 * weights
