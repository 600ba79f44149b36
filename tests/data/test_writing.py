"""What is written block by block is what the whole tensor would be."""

from __future__ import annotations

import os
import random

import h5py
import numpy as np
import pytest
import torch
import zarr
from slicing import numbers, part_of, partition, raised, random_grid

import gridwise
from gridwise.data import BlockWriter
from gridwise.grid import Box
from gridwise.testing import workers


def read(path):
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return file["data"][:]
    return zarr.open_array(path, mode="r")[:]


@workers(1, 2, 4)
@pytest.mark.parametrize("ending", [".npy", ".h5", ".zarr"])
def test_random_shapes_grids_and_chunks(tmp_path, ending):
    for case in range(6):
        rng = random.Random(case)
        shape = tuple(rng.randint(1, 7) for _ in range(rng.randint(2, 4)))
        whole, P = torch.from_numpy(numbers(*shape)), random_grid(rng, len(shape))
        chunks = rng.choice([None, tuple(rng.randint(1, 4) for _ in shape)])
        path = tmp_path / f"{case}{ending}"
        rows = rng.sample(range(shape[0]), shape[0])
        cut = rng.randint(0, shape[0])
        with BlockWriter(path, shape, P, chunks=chunks) as writer:
            assert not path.exists()
            for part in filter(None, (rows[:cut], rows[cut:])):
                writer.write(part_of(whole[part], P), part)
        assert np.array_equal(read(path), whole.numpy()), case


@workers(4)
def test_two_workers_never_write_one_chunk(tmp_path):
    written: list[Box] = []
    world, chunks, shape = gridwise.world(), (2, 3, 2), (6, 10, 7)
    for grid in ((4, 1, 1), (1, 2, 2), (2, 2, 1), (1, 4, 1)):
        P = partition(*grid)
        with BlockWriter(tmp_path / f"{grid}.zarr", shape, P, chunks=chunks) as writer:
            written.clear()
            writer._target.write = lambda box, data: written.append(box)
            writer.write(part_of(torch.zeros(shape), P))
        touched = {
            tuple((a + i) // c for a, i, c in zip(box.start, index, chunks, strict=True))
            for box in written
            for index in np.ndindex(box.shape)
        }
        told = world.transport.gather_bytes(repr(sorted(touched)).encode(), world.team)
        everyone = [chunk for part in told for chunk in eval(part)]
        assert sorted(everyone) == list(np.ndindex(3, 4, 4)), grid


@workers(2)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.complex64])
def test_dtypes(tmp_path, dtype):
    whole, P = torch.from_numpy(numbers(3, 5)).to(dtype), partition(1, 2)
    for ending in (".npy", ".h5", ".zarr"):
        with BlockWriter(tmp_path / f"a{ending}", (3, 5), P, dtype) as writer:
            writer.write(part_of(whole, P).clone().requires_grad_(dtype.is_floating_point))
        assert np.array_equal(read(tmp_path / f"a{ending}"), whole.numpy())


@workers(2)
def test_blocks_of_a_layer_with_uneven_cuts(tmp_path):
    P, whole = partition(1, 1, 2), torch.from_numpy(numbers(2, 1, 9))
    mine = whole[:, :, :2] if P.rank == 0 else whole[:, :, 2:]
    for ending in (".npy", ".h5", ".zarr"):
        with BlockWriter(tmp_path / f"a{ending}", (2, 1, 9), P) as writer:
            writer.write(mine)
        assert np.array_equal(read(tmp_path / f"a{ending}"), whole.numpy())


@workers(3)
def test_workers_outside_do_nothing(tmp_path):
    P = partition(2, 1)
    with BlockWriter(tmp_path / "a.zarr", (4, 3), P) as writer:
        writer.write(torch.ones(2, 3) if P.active else torch.empty(0))
    gridwise.world().barrier()
    assert read(tmp_path / "a.zarr").sum() == 12


@workers(2)
def test_errors_are_the_same_on_all_workers(tmp_path):
    P = partition(2, 1)
    block = torch.ones(2, 3)
    with BlockWriter(tmp_path / "a.npy", (4, 3), P) as writer:
        assert "must be different numbers" in raised(writer.write, block, [0, 1, 2, 2])
        assert "must be different numbers" in raised(writer.write, block, [0, 1, 2, 4])
        assert "a batch of 3 samples of shape (3,)" in raised(writer.write, block, [0, 1, 2])
        assert "needs the same on all workers" in raised(writer.write, block, [0, 1, 2, 3] if P.rank else [3, 2, 1, 0])
        writer.write(block)
    assert "is closed" in raised(writer.write, block)
    assert "is there already" in raised(BlockWriter, tmp_path / "a.npy", (4, 3), P)
    BlockWriter(tmp_path / "a.npy", (4, 3), P, overwrite=True).close()
    assert read(tmp_path / "a.npy").sum() == 0
    assert "no ending" in raised(BlockWriter, tmp_path / "a.png", (4, 3), P)
    assert "cannot hold" in raised(BlockWriter, tmp_path / "b.npy", (4, 3), P, torch.bfloat16)
    assert "`chunks`" in raised(BlockWriter, tmp_path / "b.zarr", (4, 3), P, chunks=(1,))
    assert "as many axes" in raised(BlockWriter, tmp_path / "b.zarr", (4, 3, 2), P)
    assert "worker 0" in raised(BlockWriter, tmp_path / "none" / "b.npy", (4, 3), P)


@workers(2)
@pytest.mark.parametrize("ending", [".npy", ".h5", ".zarr"])
def test_a_write_that_fails_on_one_worker(tmp_path, ending):
    P = partition(2, 1)
    with BlockWriter(tmp_path / f"a{ending}", (4, 3), P) as writer:
        if P.rank == 0:

            def full(box, data):
                raise OSError("no space left on device")

            writer._target.write = full
        text = raised(writer.write, torch.ones(2, 3))
        assert text.startswith("DataError")
        assert "worker 0: " in text
        assert "no space left" in text
        vars(writer._target).pop("write", None)
        writer.write(torch.ones(2, 3))
    assert read(tmp_path / f"a{ending}").sum() == 12


@workers(2)
def test_a_file_gets_its_name_when_it_is_complete(tmp_path):
    P = partition(2, 1)

    def fail():
        with BlockWriter(tmp_path / "a.zarr", (4, 3), P) as writer:
            writer.write(torch.ones(2, 3))
            raise ZeroDivisionError

    assert raised(fail) == "ZeroDivisionError: "
    gridwise.world().barrier()
    assert not (tmp_path / "a.zarr").exists()
    with BlockWriter(tmp_path / "a.zarr", (4, 3), P):
        pass
    assert (tmp_path / "a.zarr").exists()
    assert not (tmp_path / "a.zarr.partial").exists()


@workers(1, 2)
@pytest.mark.parametrize("ending", [".npy", ".h5", ".zarr"])
def test_a_file_that_has_appeared_meanwhile_is_replaced_only_if_asked(tmp_path, ending):
    P, path = partition(gridwise.world().size, 1), tmp_path / f"a{ending}"
    for overwrite in (False, True):
        writer = BlockWriter(path, (4, 3), P, overwrite=overwrite)
        if P.rank == 0 and not overwrite:
            path.mkdir() if ending == ".zarr" else path.write_text("mine")
        gridwise.world().barrier()
        writer.write(part_of(torch.ones(4, 3), P))
        if not overwrite:
            text = raised(writer.close)
            assert "has appeared" in text
            assert f"a{ending}.partial" in text
            assert not any(path.iterdir()) if ending == ".zarr" else path.read_text() == "mine"
        else:
            writer.close()
            assert read(path).sum() == 12
            gridwise.world().barrier()
            assert [item.name for item in tmp_path.iterdir()] == [path.name]
        gridwise.world().barrier()


@pytest.mark.parametrize("ending", [".npy", ".zarr"])
def test_the_old_file_is_not_lost_before_the_new_one_has_its_name(tmp_path, monkeypatch, ending):
    P, path = partition(1, 1), tmp_path / f"a{ending}"
    BlockWriter(path, (4, 3), P).close()
    writer = BlockWriter(path, (2, 3), P, overwrite=True)

    def refuse(*names):
        raise OSError("the machine stops here")

    with monkeypatch.context() as patch:
        for name in ("rename", "replace"):
            patch.setattr(os, name, refuse)
        assert "the machine stops here" in raised(writer.close)
    assert read(path).shape == (4, 3)
