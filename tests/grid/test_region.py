"""Regions against slicing and flipping an array."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gridwise.errors import PartitionError
from gridwise.grid import Box, Region


def test_regions_are_crops_and_flips_of_the_array():
    for case in range(200):
        rng = random.Random(case)
        shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 3)))
        whole = array = np.arange(np.prod(shape)).reshape(shape)
        region = Region.whole(shape)
        for _ in range(rng.randint(0, 5)):
            dim = rng.randrange(len(shape))
            if rng.random() < 0.5:
                array, region = np.flip(array, dim), region.flipped(dim)
            else:
                offset = rng.randint(0, region.shape[dim])
                extent = rng.randint(0, region.shape[dim] - offset)
                array = np.take(array, range(offset, offset + extent), dim)
                region = region.cropped(dim, offset, extent)
        assert region.shape == array.shape
        ends = [sorted(rng.randint(0, n) for _ in range(2)) for n in region.shape]
        box = Box.of_intervals((a, b) for a, b in ends)
        found = np.flip(whole[region.source_of(box).slices], region.mirrored_dims)
        assert np.array_equal(found, array[box.slices]), case


def test_a_crop_must_lie_inside():
    with pytest.raises(PartitionError, match="do not lie in"):
        Region.whole((4,)).cropped(0, 2, 3)
