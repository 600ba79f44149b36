"""Watching over the other workers, so that nobody waits for the dead.

    worker 0 ---+
    worker 1 ---+--- hub (a small process beside worker 0)
    worker 2 ---+

Every worker holds one connection to the hub. Death is a closed connection without a goodbye, not silence: a long
computation is not dead. The hub tells all who died, or who failed with what; each worker then breaks its transport's
connections (`cut`), so that whoever waits, on whomever, returns with an error, and `explain` turns that into one that
names the worker. MPI's waits cannot be broken: there the hub says it on standard error and the job is aborted. Gloo's can,
but for messages that it has lost sight of: a worker that still waits `STUCK_SECONDS` later says why, and ends itself.

A worker that has waited longer than `GRIDWISE_TIMEOUT` seconds (1800) says so; the hub asks everyone what they wait
for, and all who wait raise `CommTimeout` with the names of those who are missing.

On the way of a tensor there is nothing of this: a thread sleeps until the hub speaks, and looks at the clock now and
then.
`GRIDWISE_WATCH=off` does without.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

from ..errors import CommTimeout, GridwiseError, WorkerDied
from ..log import logger
from . import cores, hub
from .settings import is_on, timeout
from .start import shared_memory_files
from .transport import Transport
from .waiting import Waiting

NEWS_SECONDS = 3.0
"""How long an error of the library waits for the news that explain it."""
DESERTED_SECONDS = 5.0
"""How long a wait for a worker that has finished may last: its last messages may still be under way."""
STUCK_SECONDS = 10.0
"""How long a wait may last after the connections were cut: longer, and nothing will end it."""
CONNECT_SECONDS = 20.0

GIVEN_UP = "gridwise: this worker is ended, since the library that it waits in never returns"

_open: set[Watch] = set()
"""Those of this process that have not said goodbye."""


def leave_all() -> None:
    """Say goodbye in every world of this process: for a process that ends without running exit functions."""
    for each in list(_open):
        each.leave()


def tick(limit: float) -> float:
    """How often to look at the clock, in seconds, when a wait may last `limit`."""
    return min(60.0, max(1.0, limit / 10))


def watch(transport: Transport) -> Watch | None:
    """Start watching over the workers of a transport. Collective. None if there is nobody else, or nothing to reach."""
    if transport.size == 1 or not is_on("GRIDWISE_WATCH"):
        return None
    everyone = transport.gather_bytes(cores.described(), transport.everyone, "the start of the watch")
    transport.cores = cores.share(everyone, transport.rank)
    one_machine = len(set(map(cores.machine, everyone))) == 1
    address = _start_hub(transport, one_machine) if transport.rank == 0 else b""
    address = transport.gather_bytes(address, transport.everyone, "the start of the watch")[0]
    try:
        connection = _dial(**json.loads(address))
    except OSError as error:
        logger.warning("worker 0 cannot be reached: deaths will not be named (%s)", error)
        return None
    found = Watch(transport, connection, json.loads(address)["token"])
    if not found.welcomed.wait(CONNECT_SECONDS):
        logger.warning("the watch does not answer: deaths may not be named")
    transport.watch = found
    transport.on_close.append(found.leave)
    return found


def _start_hub(transport: Transport, one_machine: bool) -> bytes:
    """Start the hub; return where it is, and the secret that it wants to hear."""
    token = secrets.token_hex(16)
    settings = {"size": transport.size, "token": token, "timeout": timeout(), "speaks": not transport.can_be_cut}
    with socket.create_server(("127.0.0.1" if one_machine else "", 0), backlog=1024) as door:
        # all other descriptors are closed there: a launcher must see those of a dead worker close
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", hub.__file__, str(door.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(settings).encode() + b"\n")
        process.returncode = 0  # it outlives this process on purpose, which Popen would warn about
        hosts = ["127.0.0.1"] if one_machine else _addresses()
        return json.dumps({"hosts": hosts, "port": door.getsockname()[1], "token": token}).encode()


def _addresses() -> list[str]:
    """Under which addresses other machines may reach this one, the likeliest first."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; shows the interface that leads outside
        found.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    return [*dict.fromkeys(found), socket.gethostname()]


def _dial(hosts: list[str], port: int, token: str) -> socket.socket:
    problem: OSError | None = None
    for host in hosts:
        try:
            connection = socket.create_connection((host, port), timeout=CONNECT_SECONDS / len(hosts))
            connection.settimeout(None)
            return connection
        except OSError as error:
            problem = error
    assert problem is not None
    raise problem


class Watch:
    """This worker's connection to the hub, and what it has heard."""

    def __init__(self, transport: Transport, connection: socket.socket, token: str) -> None:
        self._transport = transport
        self._socket = connection
        self._timeout = timeout()
        self._tick = tick(self._timeout)
        self._process = os.getpid()
        self._told = threading.Condition()
        self._verdict: hub.Message | None = None
        self._finished: dict[int, float] = {}
        self._complained: Waiting | None = None
        self._left = False
        self.welcomed = threading.Event()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        host, litter = socket.gethostname(), shared_memory_files()
        self._say("hello", token=token, rank=transport.rank, process=self._process, host=host, litter=litter)
        threading.Thread(target=self._listen, name="gridwise watch", daemon=True).start()
        _open.add(self)
        atexit.register(self.leave)
        # a forked child must not hold the connection open when its parent dies
        os.register_at_fork(after_in_child=connection.close)

    def explain(self, error: Exception) -> GridwiseError | None:
        """The error that names the worker that died or failed, if that is why `error` was raised."""
        with self._told:
            self._told.wait_for(lambda: self._verdict is not None or self._deserter() is not None, NEWS_SECONDS)
            verdict, by = self._verdict, self._deserter()
        waiting = self._transport.waiting
        me = f"worker {self._transport.rank} of {self._transport.size}"
        while_ = f" while {me} waited for {waiting.what} with workers {tuple(waiting.team)}" if waiting else ""
        if verdict is None:
            if by is None:
                return None
            text = f"worker {by} of {self._transport.size} has finished{while_}\n  fix: {hub.SAME_CALLS}"
            return WorkerDied(text, (by,))
        if verdict["kind"] == "timeout":
            return CommTimeout(verdict["text"])
        return WorkerDied(f"{verdict['text']}\n {while_}" if while_ else verdict["text"], tuple(verdict["workers"]))

    def announce(self, text: str) -> None:
        """Tell the others that this worker ends with an exception."""
        self._left = True
        _open.discard(self)
        self._say("failed", text=text)

    def leave(self) -> None:
        """Say goodbye: this worker ends in good order."""
        if not self._left and os.getpid() == self._process:
            self._left = True
            _open.discard(self)
            atexit.unregister(self.leave)
            self._say("goodbye")
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _say(self, say: str, **message: Any) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps({"say": say, **message}).encode() + b"\n")

    # The thread

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        received = b""
        while True:
            if poll.poll(1000 * (1.0 if self._finished else self._tick)):
                try:
                    data = self._socket.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    self._socket.close()
                    return
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
            self._look_at_the_clock()

    def _take(self, message: hub.Message) -> None:
        if message["say"] == "welcome":
            self.welcomed.set()
        elif message["say"] == "ask":
            waiting = self._transport.waiting
            self._say("state", **(_spelt(waiting) if waiting else {}))
        elif message["say"] == "finished":
            with self._told:
                for rank in message["workers"]:
                    self._finished.setdefault(rank, time.monotonic())
                self._told.notify_all()
        elif message["say"] == "news":
            with self._told:
                self._verdict = message
                self._told.notify_all()
            if self._transport.can_be_cut:
                self._transport.cut()
                self._end_if_stuck()
            elif message["kind"] != "failed":  # who failed prints its traceback, and aborts itself
                self._end_all(message["workers"] if message["kind"] == "died" else [])

    def _end_all(self, gone: list[int]) -> None:
        """Abort the job, if none of the workers before this one has done so."""
        time.sleep(1.0 * len(set(range(self._transport.rank)) - set(gone)))
        self._transport.abort()

    def _end_if_stuck(self) -> None:
        """Return when this worker leaves; if it goes on waiting, though all its connections were cut, end it."""
        cut = time.monotonic()
        while not self._left:
            time.sleep(1.0)
            waiting = self._transport.waiting
            if waiting is not None and time.monotonic() - max(waiting.since, cut) > STUCK_SECONDS:
                self._say_where_it_waits(self.explain(RuntimeError()))
                self._transport.abort()

    def _say_where_it_waits(self, error: GridwiseError | None) -> None:
        print("Traceback (most recent call last):", file=sys.stderr)
        traceback.print_stack(sys._current_frames().get(threading.main_thread().ident or 0))
        print(f"gridwise: {type(error).__name__}: {error}\n{GIVEN_UP}", file=sys.stderr)

    def _look_at_the_clock(self) -> None:
        waiting = self._transport.waiting
        if waiting is None or waiting is self._complained or self._verdict is not None:
            return
        now = time.monotonic()
        by = self._deserter()
        if now - waiting.since > self._timeout:
            self._complained = waiting
            self._say("overdue", **_spelt(waiting))
        elif by is not None and now - max(waiting.since, self._finished[by]) > DESERTED_SECONDS:
            self._complained = waiting
            self._say("deserted", by=by, **_spelt(waiting))

    def _deserter(self) -> int | None:
        """A worker that has finished, though this one waits for it."""
        waiting = self._transport.waiting
        if waiting is None:
            return None
        found = [rank for rank in waiting.team if rank in self._finished]
        if waiting.exchange and len(found) < len(waiting.team):
            return None  # its message may have arrived before it left; others are still at work
        return found[0] if found else None


def _spelt(waiting: Waiting) -> dict[str, Any]:
    return {"what": waiting.what, "team": list(waiting.team), "since": time.monotonic() - waiting.since}
