"""Batches in one order on all workers, read ahead, resumed elsewhere, and compared where models agree anyway."""

from __future__ import annotations

import itertools
import os
import random

import numpy as np
import pytest
import torch
from slicing import numbers, part_of, partition, raised, random_grid

import gridwise
from gridwise import checkpoint
from gridwise.data import BlockDataset, BlockLoader
from gridwise.testing import workers


@workers(1, 2, 4)
def test_random_loaders():
    for case in range(8):
        rng = random.Random(case)
        shape = tuple(rng.randint(1, 6) for _ in range(3))
        whole, P = torch.from_numpy(numbers(*shape)), random_grid(rng, 3)
        size, drop = rng.randint(1, 4), rng.random() < 0.5
        options = {"prefetch": rng.randint(0, 3), "readers": rng.randint(1, 2), "seed": case, "drop_last": drop}
        with BlockLoader(BlockDataset(whole, P), size, shuffle=True, **options) as loader:
            orders = []
            for epoch in range(2):
                assert loader.epoch == epoch
                seen, count = [], 0
                for x in loader:
                    assert torch.equal(x, part_of(whole[list(loader.samples)], P)), case
                    seen += loader.samples
                    count += 1
                assert count == len(loader)
                expected = shape[0] // size * size if drop else shape[0]
                assert len(seen) == len(set(seen)) == expected
                orders.append(tuple(seen))
        told = gridwise.world().transport.gather_bytes(str(orders).encode(), gridwise.world().team)
        assert len(set(told)) == 1, "the same order on all workers"


def test_order_is_drawn_anew_for_each_epoch_and_seed():
    dataset = BlockDataset(numbers(50, 2), partition(1, 1))

    def order(seed, shuffle=True):
        loader = BlockLoader(dataset, 7, shuffle, seed)
        return [tuple(loader.samples for _ in loader) for _ in range(2)]

    assert order(0) == order(0)
    assert order(0)[0] != order(0)[1]
    assert order(0)[0] != order(1)[0]
    assert sum(order(0, shuffle=False)[1], ()) == tuple(range(50))


@workers(2)
def test_processes_read_ahead(tmp_path):
    whole, P = torch.from_numpy(numbers(5, 2, 4)), partition(1, 1, 2)
    if P.rank == 0:
        np.save(tmp_path / "a.npy", whole.numpy())
    gridwise.world().barrier()

    def add_process(x, generator):
        return x + os.getpid() / 2**24  # tells where it runs

    dataset = BlockDataset(tmp_path / "a.npy", P, dtype=torch.float64, transforms=[add_process])
    with BlockLoader(dataset, 2, processes=True) as loader:
        x = torch.cat(list(loader))
    by = ((x - part_of(whole, P)) * 2**24).unique()
    assert len(by) == 1
    assert int(by) != os.getpid()


def test_processes_read_in_an_environment_of_their_own(monkeypatch):
    """The launcher's variables are hidden from them without a change of this process's, which threads may be reading."""
    P, names = partition(1, 1, 1), {"GROUP_RANK", "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID"}
    for name in names:
        monkeypatch.setenv(name, "7")
    shown = [lambda x, generator: x + len(names & os.environ.keys())]
    options = {"prefetch": 3, "readers": 2, "processes": True}
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        dataset = BlockDataset(numbers(4, 1, 3), P, dtype=dtype, transforms=shown)
        with monkeypatch.context() as patched, BlockLoader(dataset, 1, **options) as loader:
            patched.setattr(os, "putenv", None)
            patched.setattr(os, "unsetenv", None)
            assert torch.equal(torch.cat(list(loader)), torch.from_numpy(numbers(4, 1, 3)).to(dtype))


def test_open_files_cannot_be_sent_to_processes(tmp_path):
    class Opened:
        shape, dtype = (2, 2), np.dtype("f4")

        def __getitem__(self, place):
            return numbers(2, 2)[place]

    with pytest.raises(gridwise.errors.DataError, match="give its path"):
        BlockLoader(BlockDataset(Opened(), partition(1, 1)), processes=True)


# ---- resuming -------------------------------------------------------------------------------------------------------
def drawn(loader, batches=None):
    """The samples of the next batches, or of all that are left of the epoch."""
    return [sample for _ in itertools.islice(loader, batches) for sample in loader.samples]


@workers(4)
def test_resumed_on_another_grid_every_sample_comes_once(tmp_path):
    whole, world = numbers(11, 4, 4), gridwise.world()

    def loader(*shape, size=3):
        return BlockLoader(BlockDataset(whole, partition(*shape)), size, shuffle=True, seed=5)

    straight = loader(4, 1, 1)
    expected = [drawn(straight), drawn(straight)]
    first = loader(2, 1, 2)
    drawn(first)
    begun = drawn(first, 2)
    checkpoint.save(tmp_path / "c", {"loader": first})
    for shape, size in (((1, 2, 2), 3), ((2, 1, 1), 5), ((1, 1, 1), 1)):
        again = loader(*shape, size=size)
        checkpoint.load(tmp_path / "c", {"loader": again})
        assert again.epoch == 1
        assert begun + drawn(again) == expected[1]
        assert again.epoch == 2
        assert len(drawn(again)) == 11
    assert world.size == 4


def test_a_pass_that_was_broken_off_begins_again():
    loader = BlockLoader(BlockDataset(numbers(6, 2), partition(1, 1)), 2, shuffle=True)
    first = drawn(loader, 1)
    assert drawn(loader)[:2] == first
    assert loader.epoch == 1


def test_a_state_of_another_order_is_refused():
    dataset = BlockDataset(numbers(6, 2), partition(1, 1))
    state = BlockLoader(dataset, seed=1).state_dict()
    with pytest.raises(gridwise.errors.DataError, match="`seed`: saved 1, here 2"):
        BlockLoader(dataset, seed=2).load_state_dict(state)
    with pytest.raises(gridwise.errors.DataError, match="its position"):
        BlockLoader(dataset, seed=1).load_state_dict({**state, "done": -1})


def test_arguments():
    dataset = BlockDataset(numbers(6, 2), partition(1, 1))
    for name, value in (("batch_size", 0), ("prefetch", -1), ("readers", 0), ("batch_size", 2.0)):
        with pytest.raises(gridwise.errors.PartitionError, match=name):
            BlockLoader(dataset, **{name: value})


# ---- what models tell one another -----------------------------------------------------------------------------------
def messages_of(call):
    """How many agreements a call makes on this worker."""
    transport, count = gridwise.world().transport, 0
    all_max = transport.all_max

    def counted(*args, **kwargs):
        nonlocal count
        count += 1
        return all_max(*args, **kwargs)

    transport.all_max = counted
    try:
        call()
    finally:
        del transport.all_max
    return count


@workers(2)
def test_a_batch_costs_no_message_of_its_own():
    P = partition(1, 1, 2)
    model = gridwise.distribute(torch.nn.Conv1d(1, 1, 3, padding=1), P)
    with BlockLoader(BlockDataset(numbers(8, 1, 6), P), 2) as loader:
        batches = iter(loader)
        model(next(batches))
        assert messages_of(lambda: next(batches)) == 0
        assert messages_of(lambda: model(torch.zeros(2, 1, 3))) == 1


@workers(2)
@pytest.mark.parametrize("kind", ["model", "layer"])
def test_a_worker_that_skips_a_batch_is_noticed_at_once(kind):
    P = partition(1, 1, 2)
    model = gridwise.distribute(torch.nn.Conv1d(1, 1, 3, padding=1), P)
    if kind == "layer":
        model = gridwise.nn.DistributedConv1d(P, 1, 1, 3, padding=1)
    calls = []

    def train():
        for number, x in enumerate(loader):
            if number == 1 and P.rank == 1:
                continue
            model(x)
            calls.append(number)

    with BlockLoader(BlockDataset(numbers(8, 1, 6), P), 2) as loader:
        text = raised(train)
    assert text.startswith("MismatchError")
    assert "with different batches" in text
    assert "worker 0: the batch of samples 2, 3 (from place 2 of epoch 0)" in text
    assert "worker 1: the batch of samples 4, 5 (from place 4 of epoch 0)" in text
    assert calls == [0]
    assert raised(lambda: None) == "", "the workers can still talk"


@workers(2)
def test_a_worker_that_ends_an_epoch_earlier_is_noticed():
    P = partition(1, 1, 2)
    model = gridwise.distribute(torch.nn.Conv1d(1, 1, 3, padding=1), P)
    loader = BlockLoader(BlockDataset(numbers(4, 1, 6), P), 2)

    def train():
        for number, x in enumerate(loader):
            if number or P.rank == 0:
                model(x)
        model(x)

    assert "samples 0, 1" in raised(train)
    loader.close()


@workers(2)
def test_loaders_of_other_workers_do_not_matter():
    """Each worker with a loader of its own, at its own pace, and a model of both."""
    P, mine = partition(1, 1, 2), gridwise.world().create_partition_inclusive([gridwise.world().rank])
    alone = BlockDataset(numbers(8, 1, 3), mine.create_cartesian_topology_partition([1, 1, 1]))
    model = gridwise.distribute(torch.nn.Conv1d(1, 1, 3, padding=1), P)
    shapes = []
    for number, x in enumerate(BlockLoader(alone, 2)):
        if number >= gridwise.world().rank:
            shapes.append(model(x).shape)
        if number == 2 + gridwise.world().rank:
            break
    assert shapes == [(2, 1, 3)] * 3


class Breaks:
    """Samples of which some cannot be read on one worker."""

    def __init__(self, array, bad, rank):
        self.array, self.shape, self.dtype, self.bad, self.rank = array, array.shape, array.dtype, bad, rank

    def __getitem__(self, place):
        if place[0].start <= self.bad < place[0].stop and gridwise.world().rank == self.rank:
            raise OSError(f"the disk has lost sample {self.bad}")
        return self.array[place]


@workers(2)
@pytest.mark.parametrize("agree", [False, True])
def test_what_one_worker_cannot_read_is_an_error_on_all(agree):
    P = partition(1, 1, 2)
    model = gridwise.distribute(torch.nn.Conv1d(1, 1, 3, padding=1), P)
    loader = BlockLoader(BlockDataset(Breaks(numbers(6, 1, 6), 3, 1), P), 2, agree=agree)
    batches, made = iter(loader), []

    def step():
        made.append(model(next(batches)))

    assert raised(step) == ""
    text = raised(step)
    assert text.startswith("DataError")
    assert "worker 1: the batch of samples 2, 3" in text
    assert "the disk has lost sample 3" in text
    assert "worker 0" not in text
    assert raised(step) == "", "all know of it, and can go on"
    assert len(made) == 2
    loader.close()


@workers(1, 2)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_epoch_goes_on_after_a_batch_that_could_not_be_read(prefetch):
    world, whole = gridwise.world(), numbers(12, 1, 6)
    P = partition(1, 1, world.size)
    loader = BlockLoader(BlockDataset(Breaks(whole, 3, world.size - 1), P), 2, prefetch=prefetch, agree=True)
    for epoch in range(2):
        batches, seen, failed = iter(loader), [], []
        for _ in range(len(loader)):
            try:
                x = next(batches)
            except gridwise.errors.DataError:
                failed += loader.samples
            else:
                assert torch.equal(x, part_of(torch.from_numpy(whole[list(loader.samples)]), P))
                seen += loader.samples
            assert loader.state_dict()["done"] == loader.samples[-1] + 1
        assert next(batches, None) is None
        assert (failed, seen, loader.epoch) == ([2, 3], [0, 1, *range(4, 12)], epoch + 1)
    loader.close()


@workers(2)
def test_a_batch_is_not_lost_to_the_error_of_the_one_before():
    P = partition(1, 1, 2)
    loader = BlockLoader(BlockDataset(Breaks(numbers(6, 1, 6), 0, 1), P), 2)
    batches = iter(loader)
    next(batches)
    if P.rank == 1:
        with pytest.raises(gridwise.errors.DataError, match="no model was called"):
            next(batches)
    assert torch.equal(next(batches), part_of(torch.from_numpy(numbers(6, 1, 6)[2:4]), P))
    loader.close()


def kills(sample):
    """A transform that ends the process that reads sample 0."""
    return lambda x, generator: os._exit(1) if x[0, 0] == sample else x


@pytest.mark.timeout(60)
def test_a_reader_that_dies_takes_no_later_batch_with_it():
    whole = numbers(16, 1, 3)
    dataset = BlockDataset(whole, partition(1, 1, 1), transforms=[kills(float(whole[4, 0, 0]))])
    with BlockLoader(dataset, 2, prefetch=2, processes=True) as loader:
        batches, seen = iter(loader), []
        for _ in range(len(loader)):
            try:
                next(batches)
            except gridwise.errors.DataError:
                continue
            seen += loader.samples
    assert set(range(8, 16)) <= set(seen), "only batches that were being read are lost"


@workers(2)
def test_a_batch_that_was_not_read_never_passes_in_silence():
    """Without a model, a barrier tells all; without anything, the worker itself raises."""
    P, world = partition(1, 1, 2), gridwise.world()
    loader = BlockLoader(BlockDataset(Breaks(numbers(6, 1, 6), 3, 1), P), 2)

    def with_a_barrier():
        for _ in loader:
            world.barrier()

    assert "the disk has lost sample 3" in raised(with_a_barrier)

    def alone():
        for _ in loader:
            pass

    if world.rank == 1:
        with pytest.raises(gridwise.errors.DataError, match="no model was called"):
            alone()
    loader.close()


@workers(2)
def test_a_sample_that_changes_shape_is_named(tmp_path):
    P = partition(1, 1, 2)
    if P.rank == 0:
        for i in range(4):
            np.save(tmp_path / f"{i}.npy", numbers(1, 6 if i != 2 else 5))
    gridwise.world().barrier()
    model = gridwise.distribute(torch.nn.Conv1d(1, 1, 3, padding=1), P)
    loader = BlockLoader(BlockDataset([tmp_path / f"{i}.npy" for i in range(4)], P))

    def train():
        for x in loader:
            model(x)

    text = raised(train)
    assert text.startswith("DataError")
    assert "2.npy" in text
    assert "(1, 5)" in text
    assert "workers 0, 1" in text
    loader.close()


@workers(2)
def test_a_file_that_gets_shorter_while_it_is_read_is_named(tmp_path):
    P, path = partition(1, 1, 2), tmp_path / "a.npy"
    if P.rank == 0:
        np.save(path, numbers(40, 1, 600))
    gridwise.world().barrier()
    model = gridwise.distribute(torch.nn.Conv1d(1, 1, 3, padding=1), P)
    loader = BlockLoader(BlockDataset(path, P), prefetch=0)

    def train():
        for number, x in enumerate(loader):
            model(x)
            if number == 3:
                gridwise.world().barrier()
                if P.rank == 0:
                    os.truncate(path, 20_000)
                gridwise.world().barrier()

    text = raised(train)
    assert text.startswith("DataError")
    assert "a.npy ends too early" in text
