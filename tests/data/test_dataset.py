"""Blocks of samples against slices of the whole array."""

from __future__ import annotations

import random

import h5py
import numpy as np
import pytest
import torch
import zarr
from slicing import numbers, part_of, partition, raised, random_grid

import gridwise
from gridwise.data import BlockDataset, BlockLoader
from gridwise.grid import Layout
from gridwise.testing import workers


def check_random(cases, folder):
    """Random arrays on random grids with random halos, in all formats."""
    world = gridwise.world()
    for case in cases:
        rng = random.Random(case)
        shape = tuple(rng.randint(1, 7) for _ in range(rng.randint(2, 5)))
        whole, path = numbers(*shape), folder / f"{case}.{rng.choice(['npy', 'h5', 'zarr'])}"
        if world.rank == 0:
            write(whole, path, tuple(rng.randint(1, n) for n in shape))
        world.barrier()
        P = random_grid(random.Random(case), len(shape))
        halo = [(0, 0), *((n % 4, (n + case) % 3) for n in shape[1:])]
        dataset = BlockDataset(path, P, halo)
        samples = [(7 * i + case) % shape[0] for i in range(1 + case % (2 * shape[0]))]
        assert torch.equal(dataset.read(samples), part_of(torch.from_numpy(whole)[samples], P, halo)), case
        assert len(dataset) == shape[0]


def write(whole, path, chunks):
    if path.suffix == ".npy":
        np.save(path, whole)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=whole, chunks=chunks)
    else:
        zarr.create_array(path, shape=whole.shape, chunks=chunks, dtype=whole.dtype)[:] = whole


@workers(1, 2, 4)
def test_random_shapes_grids_and_halos(tmp_path):
    check_random(range(12), tmp_path)


@pytest.mark.soak
@workers(1, 2, 3, 4)
def test_many_random_shapes_grids_and_halos(tmp_path):
    check_random(range(12, 400), tmp_path)


@workers(4)
def test_pairs_have_a_partition_each():
    x, y = numbers(6, 2, 8, 4), numbers(6, 3)
    P_x, P_y, everyone = partition(2, 1, 2, 1), partition(4, 1), gridwise.world()
    dataset = BlockDataset((x, y, y), (P_x, P_y, everyone), halo=(1, None, None), dtype=(torch.float64, None, None))
    samples = [3, 0, 5, 5, 1]
    mine, target, whole = dataset.read(samples)
    assert mine.dtype == torch.float64
    halo = [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert torch.equal(mine, part_of(torch.from_numpy(x)[samples].double(), P_x, halo))
    assert torch.equal(target, part_of(torch.from_numpy(y)[samples], P_y))
    assert torch.equal(whole, torch.from_numpy(y)[samples])


@workers(1, 4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_beyond_the_edges_of_an_image_are_zeros_if_asked_for(dtype):
    """As a block of the image with zeros around it."""
    whole, world = (torch.from_numpy(numbers(3, 2, 5, 7)) + 1).to(dtype), gridwise.world()
    P, halo = partition(1, 1, *((2, 2) if world.size == 4 else (1, 1))), [(0, 0), (0, 0), (1, 2), (3, 0)]
    dataset = BlockDataset(whole, P, halo, edges="zeros")
    around = torch.nn.functional.pad(whole, (3, 0, 1, 2))
    box = Layout.balanced(P.geometry, whole.shape).block(world.rank)
    rows, columns = slice(box.start[2], box.stop[2] + 3), slice(box.start[3], box.stop[3] + 3)
    assert torch.equal(dataset.read([2, 0]), around[[2, 0], :, rows, columns])
    assert torch.equal(dataset[1], around[1, :, rows, columns])
    with BlockLoader(dataset, 2) as loader:
        assert torch.equal(next(iter(loader)), around[:2, :, rows, columns])
    assert "`edges`" in raised(BlockDataset, whole, P, halo, edges="mirror")


@workers(3)
def test_workers_outside_hold_nothing():
    P_x = partition(2, 1)
    dataset = BlockDataset(numbers(4, 5), P_x)
    assert tuple(dataset[1].shape) == ((5,), (5,), (0,))[gridwise.world().rank]
    read = dataset.read([1, 2, 3])
    assert tuple(read.shape) == ((2, 5), (1, 5), (3, 0))[gridwise.world().rank]


def test_samples_along_another_dim_and_without_channels():
    whole = numbers(5, 4, 3)
    dataset = BlockDataset(whole, partition(1, 1, 1, 1), sample_dim=-1, add_channel=True)
    assert dataset.shapes == [(1, 5, 4)]
    assert torch.equal(dataset.read([2, 0]), torch.from_numpy(np.moveaxis(whole, -1, 0)[[2, 0], None]))
    assert torch.equal(dataset[-1], torch.from_numpy(whole[None, ..., 2]))
    with pytest.raises(IndexError):
        dataset[3]


class Lazy:
    """An array that counts what is read of it, as xarray's and dask's are: shape, dtype, slicing."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.asked = array, array.shape, array.dtype, []

    def __getitem__(self, place):
        self.asked.append(place)
        return self.array[place]


@workers(2)
def test_a_worker_reads_its_block_and_no_more():
    lazy, P = Lazy(numbers(8, 1, 6)), partition(1, 1, 2)
    BlockDataset(lazy, P).read([4, 5, 6, 1])
    mine = slice(0, 3) if P.rank == 0 else slice(3, 6)
    assert lazy.asked == [(slice(4, 7), slice(0, 1), mine), (slice(1, 2), slice(0, 1), mine)]


@workers(2)
def test_a_file_that_only_one_worker_can_read(tmp_path):
    mine = tmp_path / f"{gridwise.world().rank}.npy"
    if gridwise.world().rank == 0:
        np.save(mine, numbers(4, 4))
    text = raised(BlockDataset, mine, partition(2, 1))
    assert text.startswith("DataError: BlockDataset failed.")
    assert "worker 1" in text
    assert "worker 0" not in text
    assert "1.npy" in text


@workers(2)
def test_workers_that_have_opened_different_arrays():
    text = raised(BlockDataset, numbers(4, 4 + gridwise.world().rank), partition(2, 1))
    assert "worker 0: 4 samples of (4,)" in text
    assert "worker 1: 4 samples of (5,)" in text


@workers(2)
def test_what_does_not_fit_is_refused():
    P = partition(2, 1)
    assert "has 3 dims, its grid (2, 1) has 2 axes" in raised(BlockDataset, numbers(4, 4, 4), P)
    assert "as many samples" in raised(BlockDataset, (numbers(4, 4), numbers(5, 4)), P)
    assert "`halo`" in raised(BlockDataset, numbers(4, 4), P, [(1, 1), (0, 0)])
    assert "one entry for each of 2 arrays" in raised(BlockDataset, (numbers(4, 4), numbers(4, 4)), (P,))
    assert "object" in raised(BlockDataset, np.array([[None, 1]]), P)
    assert "no sample 4" in raised(BlockDataset(numbers(4, 4), P).read, [0, 4])
    assert "no `shape`" in raised(BlockDataset, {"a": 1}, P)
    assert "`P_x` (=3) is no partition" in raised(BlockDataset, numbers(4, 4), 3)
    assert "`P_x` (=None) is no partition" in raised(BlockDataset, (numbers(4, 4), numbers(4, 4)), (P, None))
