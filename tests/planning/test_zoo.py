"""Public models: the bytes and messages of every layer and worker are those that were planned."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

import gridwise
from gridwise.planning.tracing.comparison import compare
from gridwise.testing import workers

sys.path.insert(0, str(Path(__file__).parents[2]))

ZOO = (
    "dcgan_g", "dcgan_d", "sngan_d_old", "pix2pix_unet", "cyclegan_resnet", "milesial_unet", "vae_deterministic", "espcn",
    "edsr", "dncnn", "convlstm_zeros",
)  # fmt: skip


def compared(name, grid):
    from zoo.classics import CLASSICS

    make, shape = CLASSICS[name]
    shape = shape or (2, 3, 64, 64)
    torch.manual_seed(0)
    model, world = make(), gridwise.world()
    plan = gridwise.plan(model, grid, shape, workers=range(world.size))
    P_x = world.create_cartesian_topology_partition(grid)
    placed, x = gridwise.distribute(model, P_x), gridwise.scatter(torch.ones(shape), P_x)

    def step():
        ends = [y for y in tree_leaves(placed(x)) if isinstance(y, torch.Tensor) and y.requires_grad]
        torch.autograd.backward(ends, [torch.ones_like(y) for y in ends])

    step()
    with tempfile.TemporaryDirectory() as folder, gridwise.trace(folder) as traced:
        step()
    result, own = traced.result, plan.worker(world.rank)
    assert (result.bytes_sent(world.rank), result.messages_sent(world.rank)) == (own.sent, own.messages)
    rows = compare(plan, result)
    assert [(row.layer, row.phase, row.sent[1], row.messages[1]) for row in rows] == [
        (row.layer, row.phase, row.sent[0], row.messages[0]) for row in rows
    ]


@workers(2, transports=["gloo"])
@pytest.mark.parametrize("name", ["espcn", "vae_deterministic"])
def test_two_workers_send_what_was_planned(name):
    compared(name, (1, 1, 2, 1))


@pytest.mark.soak
@workers(2)
@pytest.mark.parametrize("name", ZOO)
def test_so_they_do_for_the_zoo(name):
    compared(name, (1, 1, 2, 1))


@pytest.mark.soak
@workers(4)
@pytest.mark.parametrize("name", ZOO)
def test_so_do_four(name):
    compared(name, (1, 1, 2, 2))


@pytest.mark.soak
@workers(8, transports=["gloo"])
@pytest.mark.parametrize("name", ZOO)
def test_so_do_eight(name):
    compared(name, (2, 1, 2, 2))
