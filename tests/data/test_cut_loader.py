"""Batches of torch's DataLoader, cut into blocks."""

from __future__ import annotations

import itertools

import pytest
import torch
from slicing import numbers, part_of, partition, raised
from torch.utils.data import DataLoader, TensorDataset

import gridwise
from gridwise.data import CutLoader
from gridwise.testing import workers

X, Y = torch.from_numpy(numbers(7, 2, 6)), torch.arange(7)


def loader(shuffle=True, **options):
    return DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=shuffle, **options)


@workers(1, 2, 4)
@pytest.mark.parametrize("reads", ["every", "first"])
def test_blocks_of_whole_batches(reads):
    world = gridwise.world()
    P_x, torch_state = partition(1, 1, world.size), torch.get_rng_state()
    torch.manual_seed(world.rank)  # workers' own random numbers do not matter
    read = None if reads == "first" and world.rank else loader()
    cut, epochs = CutLoader(read, (P_x, world), reads), []
    for _ in range(2):
        seen = []
        for x, y in cut:
            assert torch.equal(x, part_of(X[y], P_x))
            assert x.is_contiguous()
            seen += y.tolist()
        assert sorted(seen) == list(range(7))
        epochs.append(seen)
    assert epochs[0] != epochs[1]
    assert cut.epoch == 2
    torch.set_rng_state(torch_state)


@workers(2)
@pytest.mark.parametrize("reads", ["every", "first"])
def test_resumed(reads):
    P = (partition(2, 1, 1), gridwise.world())
    straight, begun, again = (CutLoader(loader(), P, reads, seed=3) for _ in range(3))
    expected = [y.tolist() for _, y in straight]
    first = [y.tolist() for _, y in itertools.islice(begun, 1)]
    again.load_state_dict(begun.state_dict())
    assert first + [y.tolist() for _, y in again] == expected
    with pytest.raises(gridwise.errors.DataError, match="`seed`"):
        CutLoader(loader(), P, reads, seed=4).load_state_dict(begun.state_dict())


@workers(3)
def test_workers_outside_and_another_grid():
    P_x = partition(2, 1, 1)
    for x in CutLoader(DataLoader(X, batch_size=7), P_x, reads="every"):
        assert tuple(x.shape) == ((4, 2, 6), (3, 2, 6))[P_x.rank]


@workers(2)
def test_workers_that_read_different_samples_are_told():
    generator = torch.Generator().manual_seed(gridwise.world().rank)
    text = raised(list, CutLoader(loader(generator=generator), (partition(2, 1, 1), partition(2)), "every"))
    assert text.startswith("DataError: CutLoader needs the same on all workers.")
    assert "worker 0: (3, 2, 6)" in text


@workers(2)
@pytest.mark.parametrize("reads", ["every", "first"])
def test_what_goes_wrong_in_the_loader_is_an_error_on_all(reads):
    class Breaks(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            if i == 2 and gridwise.world().rank == 0:
                raise OSError("the disk has lost sample 2")
            return X[i]

    loader = CutLoader(DataLoader(Breaks(), batch_size=1), partition(1, 1, 2), reads)
    batches, found = iter(loader), []

    def step():
        found.append(next(batches))

    assert raised(step) == raised(step) == ""
    text = raised(step)
    assert text.startswith("DataError: CutLoader failed.")
    assert "worker 0: the loader has raised OSError: the disk has lost sample 2" in text
    assert raised(step) == "", "all know of it, and can go on"
    for x, number in zip(found, (0, 1, 3), strict=True):
        assert torch.equal(x, part_of(X[[number]], partition(1, 1, 2)))
    assert loader.state_dict()["done"] == 4
    assert next(batches, None) is None
    assert loader.epoch == 1


@workers(2)
def test_what_does_not_fit_is_refused():
    P = partition(2, 1, 1)
    assert "as many as partitions" in raised(list, CutLoader(loader(), P))
    assert "`reads`" in raised(CutLoader, loader(), P, "some")
    assert "has no `loader`" in raised(list, CutLoader(None, P))
