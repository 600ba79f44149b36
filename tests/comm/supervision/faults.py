"""What can go wrong between three workers, one function each: `python faults.py NAME` is one worker of it.

Whoever goes says "gone" before, whoever raises says what. As `python faults.py zygote` it imports torch once and forks
three workers for each scenario that it reads from standard input, because a fresh import costs seconds.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gridwise.comm.launching import find
from gridwise.comm.supervision import open_sockets, watch
from gridwise.comm.transports.base import Transport

PATIENCE = 120.0
"""Seconds, much less than GRIDWISE_TIMEOUT, after which a worker counts as hung, on a machine that others use too."""
watch.DESERTED_SECONDS = 1.0  # five times shorter than for users, who have longer messages
watch.STUCK_SECONDS = 2.0  # likewise


def tell(kind: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, "time": time.time(), **facts}) + "\n")  # in one piece: one pipe for all
    sys.stdout.flush()


def die() -> None:
    time.sleep(0.4)
    tell("gone")
    os.kill(os.getpid(), signal.SIGKILL)


def receive(transport: Transport, peer: int, what: str) -> None:
    transport.exchange([], [(peer, torch.empty(4))], what)


def collective(transport: Transport) -> None:
    if transport.rank == 2:
        die()
    transport.all_sum(torch.ones(4), transport.everyone, "AllSumReduce")


def big_collective(transport: Transport) -> None:
    x = torch.ones(8_000_000)
    while True:
        if transport.rank == 1:
            die()
        transport.all_sum(x, transport.everyone, "AllSumReduce")


def agreement(transport: Transport) -> None:
    if transport.rank == 2:
        die()
    transport.barrier()


def large_message(transport: Transport) -> None:
    """Through the memory of the machine, over MPI too."""
    if transport.rank == 2:
        die()
    transport.exchange([], [(2, torch.empty(200_000))], "HaloExchange")


def large_sum(transport: Transport) -> None:
    if transport.rank == 2:
        die()
    transport.all_sum(torch.ones(200_000), transport.everyone, "AllSumReduce")


def device_messages(transport: Transport) -> None:
    """2 is killed while CUDA tensors go round in a circle, through memory of the device that workers share."""
    x, y = torch.ones(2, 200_000, device="cuda")
    ahead, behind = (transport.rank + 1) % 3, (transport.rank - 1) % 3
    for step in range(1_000_000):
        if transport.rank == 2 and step == 20:
            die()
        transport.exchange([(ahead, x)], [(behind, y)], "HaloExchange")


def device_sums(transport: Transport, size: int = 200_000) -> None:
    """2 is killed while CUDA tensors are summed."""
    x = torch.ones(size, device="cuda")
    for step in range(1_000_000):
        if transport.rank == 2 and step == 20:
            die()
        transport.all_sum(x, transport.everyone, "AllSumReduce")


def small_device_sums(transport: Transport) -> None:
    device_sums(transport, 100)


def stopped(transport: Transport) -> None:
    """2 is stopped for a while, as by a debugger, while the others wait for it."""
    if transport.rank == 2:
        subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    transport.barrier()
    total = transport.all_sum(torch.ones(200_000), transport.everyone, "AllSumReduce")
    assert (total == 3).all()


def exchange(transport: Transport) -> None:
    if transport.rank == 2:
        die()
    receive(transport, 2, "HaloExchange")


def chain(transport: Transport) -> None:
    """0 waits for 1, which is healthy and waits for 2, which dies."""
    if transport.rank == 2:
        die()
    receive(transport, transport.rank + 1, "HaloExchange")


def long_computation(transport: Transport) -> None:
    """2 waits for 1, which computes and knows nothing; worker 0 dies."""
    if transport.rank == 0:
        die()
    if transport.rank == 1:
        time.sleep(1.5)
        transport.all_sum(torch.ones(4), (1, 2), "AllSumReduce")
    receive(transport, 1, "HaloExchange")


def new_group(transport: Transport) -> None:
    """The others are making a group with the one that dies."""
    if transport.rank == 1:
        die()
    team = (0, 1) if transport.rank == 0 else (1, 2)
    transport.all_sum(torch.ones(4), team, "AllSumReduce")


def exception(transport: Transport) -> None:
    if transport.rank == 1:
        tell("gone")
        raise ValueError("the pressure is negative")
    transport.all_sum(torch.ones(4), transport.everyone, "AllSumReduce")


def amid_sums(transport: Transport) -> None:
    """1 fails while the others sum again and again."""
    if transport.rank == 1:
        time.sleep(0.2)
        raise ValueError("the pressure is negative")
    while True:
        transport.all_sum(torch.ones(4000), (0, 2), "AllSumReduce")


def amid_exchanges(transport: Transport, size: int = 4000) -> None:
    """1 fails while the others exchange again and again."""
    if transport.rank == 1:
        time.sleep(0.2)
        raise ValueError("the pressure is negative")
    other, x, y = 2 - transport.rank, torch.ones(size), torch.empty(size)
    while True:
        transport.exchange([(other, x)], [(other, y)], "HaloExchange")


def amid_large_exchanges(transport: Transport) -> None:
    """The same, with messages that are nearly always in the midst of something."""
    amid_exchanges(transport, 8_000_000)


def amid_a_large_message(transport: Transport) -> None:
    """2 is killed while it receives from 0."""
    x = torch.ones(16_000_000)
    if transport.rank == 2:
        pending = transport.post([], [(0, x)], "HaloExchange")
        time.sleep(0.005)
        tell("gone")
        os.kill(os.getpid(), signal.SIGKILL)
        pending.wait()
    transport.exchange([(2, x)] if transport.rank == 0 else [], [], "HaloExchange")
    receive(transport, 2, "HaloExchange")


def lost(transport: Transport, wait: Callable[[], object]) -> None:
    """2 dies, but gloo does not notice that the connections between 0 and 1 were cut."""
    open_sockets.cut = lambda which: None
    if transport.rank == 2:
        die()
    transport.barrier((0, 1))
    if transport.rank == 0:
        wait()
    time.sleep(4.0)


def lost_sum(transport: Transport) -> None:
    try:
        lost(transport, lambda: transport.all_sum(torch.ones(4), (0, 1), "AllSumReduce"))
    finally:
        transport.close()


def lost_message(transport: Transport) -> None:
    lost(transport, lambda: receive(transport, 1, "HaloExchange"))


def early_exit(transport: Transport) -> None:
    if transport.rank == 1:
        tell("gone")
        sys.exit(0)
    transport.all_sum(torch.ones(4), transport.everyone, "AllSumReduce")


def early_exit_of_worker_0(transport: Transport) -> None:
    if transport.rank == 0:
        tell("gone")
        sys.exit(3)
    receive(transport, 0, "HaloExchange")


def missing(transport: Transport, seconds: float = PATIENCE / 2) -> None:
    """1 waits for nobody; with a small GRIDWISE_TIMEOUT the others give up."""
    if transport.rank == 1:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and transport.watch._verdict is None:
            time.sleep(0.1)
        return
    transport.all_sum(torch.ones(4), transport.everyone, "AllSumReduce")


def different_operators(transport: Transport) -> None:
    """All wait, for different things."""
    if transport.rank == 1:
        receive(transport, 0, "HaloExchange")
    transport.all_sum(torch.ones(4), transport.everyone, "AllSumReduce")


def sent_and_left(transport: Transport) -> None:
    """1 sends what 0 waits for and leaves; 2 takes its time."""
    if transport.rank == 0:
        transport.exchange([], [(1, torch.empty(4)), (2, torch.empty(4))], "HaloExchange")
    else:
        time.sleep(2.0 + watch.DESERTED_SECONDS if transport.rank == 2 else 0.0)
        transport.exchange([(0, torch.ones(4))], [], "HaloExchange")


def exception_in_a_second_world(transport: Transport) -> None:
    """The transport of the first was closed, in good order."""
    transport.close()
    exception(find.current())


def closed(transport: Transport) -> None:
    """Says which descriptor the watch still has, soon after its transport was closed."""
    watching = transport.watch
    assert isinstance(watching, watch.Watch)
    transport.close()
    deadline = time.monotonic() + 10.0
    while watching._socket.fileno() >= 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    tell("closed", descriptor=watching._socket.fileno())


def sum_that_ends_at_exit(transport: Transport) -> None:
    """0 and 1 leave while gloo's threads still have sums of theirs, which end when 2 comes."""
    transport.node = None  # whose sums have no threads
    if transport.rank == 2:
        time.sleep(0.2)
    pending = [transport.post_sum(torch.ones(4), transport.everyone) for _ in range(4)]
    if transport.rank == 2:
        for each in pending:
            each.wait()
    else:  # as in the instant after a wait, when gloo alone has the tensors
        pending.clear()
        transport._posted.clear()


def hub_dies(transport: Transport) -> None:
    """The hub is killed; afterwards 1 never comes, and with a small GRIDWISE_TIMEOUT the others give up."""
    if transport.rank == 0:
        assert isinstance(transport.watch, watch.Watch)
        os.kill(transport.watch._hub_process, signal.SIGKILL)
    missing(transport, 15.0)


def nothing(transport: Transport) -> None:
    transport.barrier()


def forked_child(transport: Transport) -> None:
    """A child of the worker that dies, a data loader's say, lives on: the death must be seen all the same."""
    if transport.rank == 2:
        if os.fork() == 0:
            time.sleep(6.0)
            os._exit(0)
        die()
    transport.all_sum(torch.ones(4), transport.everyone, "AllSumReduce")


def worker(name: str) -> None:
    scenario: Callable[[Transport], None] = globals()[name]
    transport = find.current()
    transport.barrier()
    try:
        scenario(transport)
        tell("done")
    except Exception as error:
        workers = getattr(error, "workers", ())
        tell("raised", error=type(error).__name__, text=str(error), workers=workers)
        raise


def forked(name: str, count: int) -> list[str]:
    """What each of `count` workers over gloo printed, and whether it was aborted or had to be killed."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp())
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            with open(folder / str(rank), "wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            place = {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({key: str(value) for key, value in place.items()})
            raise Forked(name)
        children.append(child)
    deadline = time.monotonic() + PATIENCE
    ends = dict.fromkeys(children, "")
    while any(children):
        for child in filter(None, list(children)):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children[children.index(child)] = None
                ends[child] += '{"kind": "aborted"}' if os.WTERMSIG(status) == signal.SIGABRT else ""
            elif time.monotonic() > deadline:
                ends[child] = '{"kind": "hung"}'
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return [(folder / str(rank)).read_text() + end for rank, end in enumerate(ends.values())]


class Forked(BaseException):
    """Leaves the zygote's loop in a child, so that it ends like any other program: hooks, atexit and all."""


def zygote() -> None:
    gc.freeze()  # the children's end is then three times faster
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.update(request["environment"])
        print(json.dumps(forked(request["name"], 3)), flush=True)
        for key in request["environment"]:
            del os.environ[key]


if __name__ == "__main__":
    name = sys.argv[1]
    if name == "zygote":
        try:
            zygote()
        except Forked as child:
            name = str(child)
    if name != "zygote":
        worker(name)
