"""What tests of data share: arrays, and this worker's part of them by slicing the whole."""

from __future__ import annotations

import math
import random

import numpy as np
import torch

import gridwise
from gridwise.grid import Layout
from gridwise.grid.arrange import factorisations


def partition(*shape: int) -> gridwise.CartesianPartition:
    """A grid of that shape of the first workers of the world."""
    world = gridwise.world()
    return world.create_partition_inclusive(range(math.prod(shape))).create_cartesian_topology_partition(shape)


def random_grid(random: random.Random, axes: int) -> gridwise.CartesianPartition:
    """A grid of all workers."""
    return partition(*random.choice(list(factorisations(gridwise.world().size, axes))))


def numbers(*shape: int, dtype: str = "f4") -> np.ndarray:
    """An array in which every element is another."""
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


def part_of(whole: torch.Tensor, P: gridwise.CartesianPartition, halo=None) -> torch.Tensor:
    """This worker's block, with its halo, of a tensor that lies on `P`."""
    block = Layout.balanced(P.geometry, whole.shape).block(P.transport.rank)
    pairs = halo or [(0, 0)] * whole.dim()
    return whole[
        tuple(
            slice(max(0, a - before), min(n, b + after))
            for a, b, (before, after), n in zip(block.start, block.stop, pairs, whole.shape, strict=True)
        )
    ]


def raised(call, *args, **kwargs) -> str:
    """What a call raises here, after making sure that all workers of the world raise the same."""
    world, text = gridwise.world(), ""
    try:
        call(*args, **kwargs)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    told = world.transport.gather_bytes(text.encode(), world.team)
    assert {part.decode() for part in told} == {text}, [part.decode() for part in told]
    return text
