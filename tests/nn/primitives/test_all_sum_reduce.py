"""AllSumReduce beyond the contract: the seed's example, precision, determinism, clones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gridwise
from gridwise.comm.launching.start import environment_for
from gridwise.errors import PartitionError
from gridwise.nn import AllSumReduce
from gridwise.testing import workers


def test_the_example_of_the_documentation_on_twelve_workers():
    script = Path(__file__).with_name("twelve.py")  # over gloo: twelve that wait by polling take longer on few cores
    environment = environment_for(12, "gloo")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"worker {rank} is right" for rank in range(12)), done.stderr


@workers(3, 4)
def test_the_sum_is_bitwise_the_same_on_all_workers_and_from_call_to_call():
    world = gridwise.world()
    torch.manual_seed(world.rank)
    x = torch.randn(1001) * 10.0 ** torch.randint(-6, 6, (1001,))
    layer = AllSumReduce(world, (0,))
    first, second = layer(x), layer(x)
    assert torch.equal(first, second)
    told = world.transport.gather_bytes(first.cpu().numpy().tobytes(), world.team)
    assert len(set(told)) == 1


@workers(4)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32_and_rounded_once(dtype):
    world = gridwise.world()
    big = torch.tensor([1.0, 256.0, 1024.0]).to(dtype)
    x = big if world.rank == 0 else (big * 2.0**-9)
    y = AllSumReduce(world, (0,))(x)
    assert torch.equal(y, (big.float() + 3 * (big * 2.0**-9).float()).to(dtype))


@workers(1, 2)
def test_nothing_to_sum_gives_a_clone_and_inactive_workers_too():
    world = gridwise.world()
    grid = world.create_cartesian_topology_partition([world.size, 1])
    x = torch.ones(3)
    for layer in (AllSumReduce(grid, axes_reduce=()), AllSumReduce(grid, axes_keep=(0, 1))):
        y = layer(x)
        assert torch.equal(y, x)
        assert y.data_ptr() != x.data_ptr()
    outside = world.create_partition_inclusive([0])
    z = AllSumReduce(outside, (0,))(x)
    assert z.data_ptr() != x.data_ptr()


def test_exactly_one_of_the_two_choices_is_needed():
    world = gridwise.world()
    for choice in ({}, {"axes_reduce": (0,), "axes_keep": (0,)}):
        with pytest.raises(PartitionError, match="exactly one"):
            AllSumReduce(world, **choice)
    with pytest.raises(PartitionError, match="axis 1"):
        AllSumReduce(world, (1,))


@workers(1, 3)
def test_a_number_without_dims_and_an_empty_tensor_are_summed():
    layer = AllSumReduce(gridwise.world(), (0,))
    assert float(layer(torch.tensor(2.0))) == 2.0 * gridwise.world().size
    assert layer(torch.ones(0, 3)).shape == (0, 3)
