"""Pools of workers: results, errors, deaths and hangs; test_pool_ends.py has what is left when a pool ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from processes import TRANSPORTS, check_gone

import gridwise
from gridwise.comm.launching import find
from gridwise.comm.launching.pool import FAILURES, Pool
from gridwise.comm.launching.pool_task import ASK_SECONDS
from gridwise.errors import CommTimeout, PartitionError, WorkerDied, WorkerFailed
from gridwise.testing import workers


@pytest.fixture(scope="module", params=TRANSPORTS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(3, request.param, env={"GRIDWISE_TIMEOUT": "9", "COLOUR": "green"}) as one:
        yield one


def total(value: float) -> tuple[int, int, float]:
    transport = find.current()
    return transport.rank, transport.size, transport.all_sum(torch.tensor([value]), transport.everyone).item()


def test_results_come_in_the_order_of_the_workers(pool: Pool) -> None:
    assert pool.run(total, 2.0) == [(0, 3, 6.0), (1, 3, 6.0), (2, 3, 6.0)]
    assert pool.run(lambda: time.sleep(0.1 * (2 - find.current().rank)) or find.current().rank) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_workers_have_a_world_of_their_own(pool: Pool, count: int) -> None:
    assert pool.run(total, 1.0, workers=count) == [(rank, count, float(count)) for rank in range(count)]


def test_functions_that_have_no_importable_name_and_keywords_travel(pool: Pool) -> None:
    factor = 3

    class Local:
        value = 4

    def inner(x: int, *, y: int) -> int:
        return factor * x + y + Local().value

    namespace: dict[str, Callable[[int], int]] = {"__name__": "__main__"}  # as a notebook has it
    exec("def cell(x):\n    return helper(x) + 1\ndef helper(x):\n    return 10 * x", namespace)
    assert pool.run(inner, 2, y=1) == [11] * 3
    assert pool.run(namespace["cell"], 2) == [21] * 3


def test_the_environment_is_the_workers_own(pool: Pool) -> None:
    def look() -> tuple[str | None, str | None, bool]:
        return os.environ.get("COLOUR"), os.environ.get("OMP_NUM_THREADS"), "GRIDWISE_POOL" in os.environ

    assert pool.run(look, workers=1) == [("green", os.environ.get("OMP_NUM_THREADS", "1"), False)]


class Awkward(Exception):
    """Cannot be made from its pickled arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_exception_is_raised_as_itself_with_the_workers_name_and_traceback(pool: Pool) -> None:
    def fail() -> None:
        if find.current().rank == 1:
            raise KeyError("pressure")

    with pytest.raises(KeyError, match="pressure") as caught:
        pool.run(fail)
    (note,) = caught.value.__notes__
    assert "raised on worker 1 of 3" in note
    assert 'raise KeyError("pressure")' in note


def test_an_exception_that_cannot_travel_is_told_in_words(pool: Pool) -> None:
    def fail() -> None:
        raise Awkward(1, 2)

    with pytest.raises(WorkerFailed, match=r"worker \d of 3 failed: .*Awkward: 1 and 2"):
        pool.run(fail)


def test_a_result_that_cannot_travel_is_an_error(pool: Pool) -> None:
    with pytest.raises(PartitionError, match="cannot be pickled"):
        pool.run(lambda: (x for x in ()))


def test_messages_of_a_failed_task_do_not_reach_the_next(pool: Pool) -> None:
    def send_and_fail() -> None:
        transport = find.current()
        if transport.rank == 0:
            transport.post([(1, torch.full((4,), 666.0))], [])
        raise ValueError("after sending")

    def receive() -> float:
        transport = find.current()
        x = torch.full((4,), float(transport.rank))
        if transport.rank == 0:
            transport.exchange([(1, x)], [])
        elif transport.rank == 1:
            transport.exchange([], [(0, x)])
        return x[0].item()

    with pytest.raises(ValueError, match="after sending"):
        pool.run(send_and_fail)
    assert pool.run(receive, timeout=20) == [0.0, 0.0, 2.0]


def test_the_cause_is_raised_not_its_consequence_and_the_pool_starts_again(pool: Pool) -> None:
    def fail() -> None:
        transport = find.current()
        if transport.rank == 2:
            raise ArithmeticError("root")
        transport.barrier()

    before = pool.run(os.getpid)
    with pytest.raises(ArithmeticError, match="root"):
        pool.run(fail)
    check_gone(before)
    assert pool.run(total, 1.0)[0] == (0, 3, 3.0)


def test_a_killed_worker_is_named_and_the_others_are_ended(pool: Pool) -> None:
    def kill() -> None:
        transport = find.current()
        if transport.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        transport.barrier()

    before = pool.run(os.getpid)
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="worker 1 of 3 died") as caught:
        pool.run(kill)
    assert time.monotonic() - began < 5
    assert caught.value.workers == (1,)
    check_gone(before)


def test_a_fork_of_a_killed_worker_does_not_hide_its_death(pool: Pool) -> None:
    def kill() -> None:
        if find.current().rank == 2:
            if os.fork() == 0:  # as a data loader would
                time.sleep(8)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerDied, match="worker 2 of 3 died"):
        pool.run(kill, timeout=6)


def test_a_hang_ends_with_every_stack(pool: Pool) -> None:
    def hang() -> None:
        transport = find.current()
        if transport.rank == 0:
            time.sleep(60)
        elif transport.rank == 1:
            transport.barrier()

    pool.run(total, 1.0)
    with pytest.raises(CommTimeout) as caught:
        pool.run(hang, timeout=1.0)
    text = str(caught.value)
    assert "worker 2 has finished" in text
    assert "time.sleep(60)" in text
    assert "worker 1 waits for a barrier with workers (0, 1, 2)" in text


def test_a_wait_longer_than_gridwise_timeout_ends(pool: Pool) -> None:
    def wait() -> None:
        transport = find.current()
        if transport.rank:
            transport.barrier()
        else:
            time.sleep(60)

    with pytest.raises(CommTimeout, match=r"`GRIDWISE_TIMEOUT` \(=9\)"):
        pool.run(wait)


def leave_the_others() -> None:
    if gridwise.world().rank != 1:
        gridwise.world().barrier()


def sum_alone() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([3])
    P_0 = world.create_partition_inclusive([0]).create_cartesian_topology_partition([1])
    layer = gridwise.nn.SumReduce(P_x, P_0)
    if world.rank == 0:
        layer(torch.ones(2))


def scatter_alone() -> None:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([3])
    P_0 = world.create_partition_inclusive([0]).create_cartesian_topology_partition([1])
    layer = gridwise.nn.Repartition(P_0, P_x)
    if world.rank == 0:
        layer(torch.ones(6))


def backward_alone() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([3])
    y = gridwise.nn.AllSumReduce(P_x, (0,))(torch.ones(2, requires_grad=True))
    if P_x.rank == 2:
        y.sum().backward()


def save_alone(folder: str) -> None:
    if gridwise.world().rank == 1:
        gridwise.checkpoint.save(folder, torch.nn.Linear(2, 2).state_dict())


def exchange_alone() -> None:
    transport = find.current()
    if transport.rank == 0:
        transport.exchange([], [(1, torch.empty(4))], "HaloExchange")


@pytest.mark.parametrize(
    "task",
    [
        leave_the_others,
        backward_alone,
        *(
            pytest.param(task, marks=pytest.mark.soak)
            for task in (sum_alone, scatter_alone, save_alone, exchange_alone)
        ),
    ],
)
def test_a_worker_that_returns_while_others_wait_for_it_is_named(
    pool: Pool, task: Callable[..., None], tmp_path: Path
) -> None:
    """Long before GRIDWISE_TIMEOUT, and the pool can be used afterwards."""
    arguments = (str(tmp_path / "saved"),) if task is save_alone else ()
    with pytest.raises(WorkerDied, match=r"worker \d of 3 has finished, but worker \d has waited") as caught:
        pool.run(task, *arguments)
    assert "fix: let every worker call the same operators" in str(caught.value)
    assert task.__name__ in "".join(caught.value.__notes__)
    assert pool.run(total, 1.0)[0] == (0, 3, 3.0)


def own_world() -> gridwise.Partition:
    if gridwise.world().transport.name == "mpi":
        from mpi4py import MPI

        return gridwise.world(MPI.COMM_WORLD)
    return gridwise.world(torch.distributed.group.WORLD)


def skipped_in_a_world_of_its_own() -> None:
    world = own_world()
    world.barrier()
    if world.rank != 1:
        world.barrier()


def chain_with_one_end() -> None:
    """0 waits for 1, which has finished, and for 2, which waits for 0."""
    transport = find.current()
    if transport.rank != 1:
        peers = (1, 2) if transport.rank == 0 else (0,)
        transport.exchange([], [(peer, torch.empty(2)) for peer in peers], "HaloExchange")


@pytest.mark.parametrize("task", [skipped_in_a_world_of_its_own, chain_with_one_end])
def test_one_that_has_finished_is_named_in_worlds_of_a_task_and_in_chains(
    pool: Pool, task: Callable[..., None]
) -> None:
    with pytest.raises(WorkerDied, match=r"worker 1 of 3 has finished, but worker \d has waited"):
        pool.run(task, timeout=100)
    assert pool.run(total, 1.0)[0] == (0, 3, 3.0)


def test_a_world_that_a_task_has_made_is_not_deserted_between_tasks(pool: Pool) -> None:
    """Who has finished the last task comes to the next one, however late."""

    def late() -> int:
        world = own_world()
        if world.rank == 1:
            time.sleep(2.0)
        world.barrier()
        return world.size

    for _ in range(2):
        assert pool.run(late) == [3, 3, 3]


def test_slow_workers_and_those_who_did_their_part_are_not_taken_for_gone(pool: Pool) -> None:
    def work() -> float:
        """0 copies to all and returns; 2 computes before it comes, while 1 may wait for it."""
        transport = find.current()
        if transport.rank == 2:
            time.sleep(3 * ASK_SECONDS)
        x = torch.full((2,), float(transport.rank))
        transport.copy_from(x, 0, transport.everyone)
        if transport.rank == 1:
            time.sleep(2 * ASK_SECONDS)
        return transport.sum_to(x + 1, 2, transport.everyone) is not None

    assert pool.run(work) == [False, False, True]


def test_arguments_are_checked() -> None:
    with pytest.raises(PartitionError, match="workers"):
        Pool(0)
    with pytest.raises(PartitionError, match="transport"):
        Pool(2, "pigeon")
    with pytest.raises(PartitionError, match="from 1 to 2"):
        Pool(2, "gloo").run(total, workers=3)


def used() -> tuple[int, int]:
    """Open descriptors and mapped files of this process, with a world in use."""
    total(1.0)
    return len(os.listdir("/dev/fd")), len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts what is mapped, which needs /proc")
def test_failed_tasks_leave_nothing_open(pool: Pool) -> None:
    def fail() -> None:
        transport = find.current()
        transport.all_sum(torch.ones(1 << 17), transport.everyone)  # large enough for shared memory
        raise ValueError("after a sum")

    def failed(times: int) -> tuple[list[int], list[int]]:
        for _ in range(times):
            with pytest.raises(ValueError, match="after a sum"):
                pool.run(fail)
        descriptors, maps = zip(*pool.run(used), strict=True)
        return list(descriptors), list(maps)

    descriptors, maps = failed(2)
    after, maps_after = failed(FAILURES - 5)
    assert after == descriptors
    assert max(maps_after) < max(maps) + FAILURES // 2
    renewed, _ = failed(10)  # by then new workers have taken over where nothing more can be freed
    assert all(now <= then for now, then in zip(renewed, descriptors, strict=True)), f"{descriptors} became {renewed}"


def test_a_sum_that_nobody_joins_does_not_hold_up_the_next_task(pool: Pool) -> None:
    def fail() -> None:
        transport = find.current()
        if pool_transport == "gloo" and transport.rank == 0:
            transport.post_sum(torch.ones(4), transport.everyone)
        raise ValueError("while it runs")

    pool_transport = pool.transport
    with pytest.raises(ValueError, match="while it runs"):
        pool.run(fail)
    assert pool.run(total, 1.0, timeout=20)[2] == (2, 3, 3.0)


@workers(3)
def test_groups_are_made_once_and_shared() -> None:
    transport = find.current()
    make = getattr(transport, "comm_of", None) or transport.group_of
    teams = [team for team in ((0, 1), (0, 2), (1, 2), (0, 1, 2)) if transport.rank in team]
    first = [make(team) for team in teams]
    descriptors = len(os.listdir("/dev/fd"))
    for _ in range(10_000):
        for team, group in zip(teams, first, strict=True):
            assert make(team) is group
    assert len(os.listdir("/dev/fd")) == descriptors
