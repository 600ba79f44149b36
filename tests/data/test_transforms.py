"""Random transforms: the same on all workers of a sample, and on any grid."""

from __future__ import annotations

import random

import pytest
import torch
from slicing import numbers, part_of, partition, random_grid

from gridwise.data import BlockDataset, RandomCrop, RandomFlip
from gridwise.errors import DataError, PartitionError
from gridwise.testing import workers


def brighter(blocks, generator):
    x, y = blocks
    return x * torch.rand((), generator=generator), y


@workers(1, 2, 4)
def test_blocks_of_transformed_samples():
    for case in range(8):
        rng = random.Random(case)
        x, y = numbers(5, 2, 7, 6), numbers(5, 1, 7, 6)
        crop = RandomCrop((rng.randint(1, 7), rng.randint(1, 6)))
        transforms = rng.sample([crop, RandomFlip([-1, -2]), brighter, RandomFlip([-1], p=1.0)], rng.randint(1, 4))
        alone = BlockDataset((x, y), partition(1, 1, 1, 1), transforms=transforms)
        P, halo = random_grid(rng, 4), [(0, 0), (0, 0), (1, 2), (0, 1)]
        dataset = BlockDataset((x, y), P, halo=(halo, None), transforms=transforms)
        if P.transport.rank == 0:
            whole = alone.reader.read(alone.request([4, 1, 3], epoch=2, seed=case))
        else:  # what worker 0 alone would make of it
            from gridwise.data.reader import ReadRequest
            from gridwise.grid import Box

            boxes = tuple(Box.of_shape((3, *shape)) for shape in alone.shapes)
            whole = alone.reader.read(ReadRequest((4, 1, 3), boxes, 2, case))
        found = dataset.read([4, 1, 3], epoch=2, seed=case)
        assert torch.equal(found[0], part_of(whole[0], P, halo)), case
        assert torch.equal(found[1], part_of(whole[1], P)), case


def test_crops_and_flips_are_those_of_the_array():
    whole = torch.from_numpy(numbers(2, 1, 6, 6))
    P = partition(1, 1, 1, 1)
    places = set()
    for epoch in range(30):
        x = BlockDataset(whole, P, transforms=[RandomCrop((4, 3)), RandomFlip([-1])]).read([1], epoch)
        x = x.flip(-1) if x[0, 0, 0, 0] > x[0, 0, 0, -1] else x
        first = int(x[0, 0, 0, 0]) - 36
        places.add((first // 6, first % 6))
        assert torch.equal(x, whole[1:, :, first // 6 : first // 6 + 4, first % 6 : first % 6 + 3])
    assert len(places) > 6
    assert all(row <= 2 and column <= 3 for row, column in places)


def test_only_the_crop_is_read():
    class Counted:
        shape, dtype = (2, 1, 100, 100), numbers(1).dtype
        asked = 0

        def __getitem__(self, place):
            found = numbers(*self.shape)[place]
            self.asked += found.size
            return found

    counted = Counted()
    BlockDataset(counted, partition(1, 1, 1, 1), transforms=[RandomCrop((5, 5))]).read([0, 1])
    assert counted.asked == 50


def test_what_does_not_fit_is_refused():
    P = partition(1, 1, 1)
    with pytest.raises(PartitionError, match="does not lie in"):
        BlockDataset(numbers(2, 1, 4), P, transforms=[RandomCrop((5,))])
    with pytest.raises(PartitionError, match="must be alike"):
        BlockDataset((numbers(2, 1, 4), numbers(2, 1, 5)), P, transforms=[RandomCrop((3,))])
    pair = BlockDataset((numbers(2, 1, 4), numbers(2, 1, 5)), P, transforms=[RandomCrop((3,), fields=[1])])
    assert pair.shapes == [(1, 4), (1, 3)]
    with pytest.raises(PartitionError, match="`fields`"):
        BlockDataset(numbers(2, 1, 4), P, transforms=[RandomFlip([-1], fields=[1])])
    with pytest.raises(PartitionError, match="`dims`"):
        RandomFlip([0])
    with pytest.raises(PartitionError, match="`size`"):
        RandomCrop((0,))
    dataset = BlockDataset(numbers(2, 1, 4), P, transforms=[lambda x, generator: x[:, :2]])
    with pytest.raises(DataError, match="same shapes and dtypes"):
        dataset.read([0])
    failing = BlockDataset(numbers(2, 1, 4), P, transforms=[lambda x, generator: x / generator])
    with pytest.raises(DataError, match="transform 0 of sample 0: TypeError"):
        failing.read([0])
