"""The watch over the other workers, so that nobody waits for one that has died.

    worker 0 ---+
    worker 1 ---+--- hub (a small process beside worker 0)
    worker 2 ---+

Every worker holds one connection to the hub. Death is a connection closed without a goodbye, not silence: a worker in a
long computation is not dead. The hub tells all workers who died, or who failed and how; each worker then breaks its
transport's connections (`cut`), so that every wait, for whichever worker, returns with an error, which `explain` turns into
one that names the worker. MPI's waits cannot be broken: there the hub reports on standard error and the job is aborted.
Gloo's can, except for messages that it has lost track of: a worker that still waits `STUCK_SECONDS` later says why, and
ends itself.

A worker that has waited longer than `GRIDWISE_TIMEOUT` seconds (1800) reports it; the hub asks all workers what they wait
for, and all that wait raise `CommTimeout`, which names the missing workers.

The hub admits only workers of the job (see `authenticated_listener`): worker 0 sends the secret to the others over the
transport. The hub listens at the address that the job uses. If it dies, every worker logs that and supervises its own waits
from then on: those longer than `GRIDWISE_TIMEOUT` still end, but without naming a worker.

Nothing of this is in the path of a tensor: a thread sleeps until the hub sends something, and checks the time now and then.
`GRIDWISE_WATCH=off`, on any worker, disables the watch.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback

from ...errors import CommTimeout, GridwiseError, WorkerDied
from ...log import logger
from ..launching import cores
from ..settings import is_on, timeout
from ..transports.base import Transport
from . import bare_process, guardian, hub, network_addresses, original_stderr
from .authenticated_listener import connect_authenticated, new_secret
from .finished_workers import SAME_CALLS, FinishedWorkers, Wait, deserted
from .waiting import Waiting

NEWS_SECONDS = 3.0
"""How long an error of the library waits for the news that explains it."""
DESERTED_SECONDS = 5.0
"""How long a wait for a finished worker may last: the worker's exit handlers may still make the call."""
STUCK_SECONDS = 10.0
"""How long a wait may last after the connections were cut: after that, nothing will end it."""
CONNECT_SECONDS = 20.0
LONGEST_TEXT = 100_000
"""The number of characters of an exception that are sent to the others."""

GIVEN_UP = "gridwise: ending this worker, because the library call that it waits in will never return"

_open: set[Watch] = set()
"""The watches of this process that have not said goodbye."""


def _hang_up() -> None:
    """Close the connections in a forked child, which must not keep them open when its parent dies."""
    for each in _open:
        each._socket.close()


os.register_at_fork(after_in_child=_hang_up)


def tick(limit: float) -> float:
    """The interval, in seconds, at which to check waits that may last `limit`."""
    return min(60.0, max(1.0, limit / 10))


def watch(transport: Transport) -> Watch | None:
    """Start the watch over a transport's workers. Collective. None if there is one worker, no hub, or it is disabled."""
    if transport.size == 1:
        return None
    what = "the start of the watch"
    everyone = transport.gather_bytes(cores.described() if is_on("GRIDWISE_WATCH") else b"", transport.everyone, what)
    if not all(everyone):
        return None
    transport.cores = cores.share(everyone, transport.rank)
    places = transport.gather_bytes(network_addresses.described(), transport.everyone, what)
    process, said = _try_to_start_hub(transport, places) if transport.rank == 0 else (None, b"")
    address = json.loads(transport.gather_bytes(said, transport.everyone, what)[0])
    if "failed" in address:
        logger.warning("the watch beside worker 0 cannot be started: deaths will not be named (%s)", address["failed"])
        return None
    try:
        connection = connect_authenticated(**address, seconds=CONNECT_SECONDS)
    except OSError as error:
        logger.warning("the watch beside worker 0 cannot be reached: deaths will not be named (%s)", error)
        return None
    found = Watch(transport, connection, process)
    if not found.welcomed.wait(CONNECT_SECONDS):
        logger.warning("the watch does not answer: deaths may not be named")
    transport.watch = found
    transport.on_close.append(found.leave)
    return found


def _try_to_start_hub(transport: Transport, places: list[bytes]) -> tuple[int | None, bytes]:
    """As `_start_hub`; a failure is returned in place of the address, because the other workers wait for one."""
    try:
        return _start_hub(transport, places)
    except OSError as error:
        return None, json.dumps({"failed": str(error)}).encode()


def _start_hub(transport: Transport, places: list[bytes]) -> tuple[int, bytes]:
    """Start the hub; return its process id, and its address together with the job's secret."""
    secret = new_secret()
    settings = {
        "size": transport.size,
        "secret": secret,
        "timeout": timeout(),
        "prints_verdict": not transport.can_be_cut,
    }
    hosts = network_addresses.addresses_for(places, transport.addresses())
    with contextlib.ExitStack() as opened:
        listeners = [opened.enter_context(listener) for listener in network_addresses.listen(hosts)]
        descriptors = [listener.fileno() for listener in listeners]
        # all other descriptors are closed in the hub: a launcher must see a dead worker's descriptors close
        process = subprocess.Popen(
            bare_process.command("hub", *map(str, descriptors)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=original_stderr.descriptor(),
            pass_fds=descriptors,
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(settings).encode() + b"\n")
        process.returncode = 0  # the hub outlives this process on purpose, which Popen would warn about
        address = {"hosts": hosts, "port": listeners[0].getsockname()[1], "secret": secret}
        return process.pid, json.dumps(address).encode()


class Watch:
    """This worker's connection to the hub, and the news received over it."""

    def __init__(self, transport: Transport, connection: socket.socket, hub_process: int | None) -> None:
        self._transport = transport
        self._hub_process = hub_process
        self._socket = connection
        self._timeout = timeout()
        self._tick = tick(self._timeout)
        self._process = os.getpid()
        self._saying = threading.Lock()
        self._news = threading.Condition()
        self._verdict: hub.Message | None = None
        self._finished = FinishedWorkers()
        self._complained: Waiting | None = None
        self._left = False
        self.welcomed = threading.Event()
        host, leftover_files = socket.gethostname(), sorted(guardian.shared_memory_of(self._process))
        self._say("hello", rank=transport.rank, process=self._process, host=host, leftover_files=leftover_files)
        threading.Thread(target=self._listen, name="gridwise watch", daemon=True).start()
        _open.add(self)
        atexit.register(self.leave)

    def explain(self, error: Exception) -> GridwiseError | None:
        """The error that names the worker that died or failed, if that is why `error` was raised."""
        waiting = self._transport.waiting
        team = waiting.team if waiting else ()
        with self._news:
            self._news.wait_for(lambda: self._verdict is not None or bool(self._finished.among(team)), NEWS_SECONDS)
            verdict, gone = self._verdict, self._finished.among(team)
        me = f"worker {self._transport.rank} of {self._transport.size}"
        while_ = f" while {me} waited for {waiting.what} with workers {tuple(waiting.team)}" if waiting else ""
        if verdict is None:
            if not gone:
                return None
            text = f"worker {gone[0]} of {self._transport.size} has finished{while_}\n  fix: {SAME_CALLS}"
            return WorkerDied(text, (gone[0],))
        if verdict["kind"] == "timeout":
            return CommTimeout(verdict["text"])
        died = WorkerDied(f"{verdict['text']}\n {while_}" if while_ else verdict["text"], tuple(verdict["workers"]))
        died.elsewhere = verdict["elsewhere"]
        return died

    def announce(self, text: str) -> None:
        """Tell the others that this worker is ending with an exception."""
        self._left = True
        _open.discard(self)
        self._say("failed", text=text[:LONGEST_TEXT])

    def leave(self) -> None:
        """Say goodbye: this worker is ending normally."""
        if not self._left and os.getpid() == self._process:
            self._left = True
            _open.discard(self)
            atexit.unregister(self.leave)
            self._say("goodbye", counts=self._transport.counted())
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _say(self, say: str, **message: object) -> None:
        with contextlib.suppress(OSError), self._saying:
            self._socket.sendall(json.dumps({"say": say, **message}).encode() + b"\n")

    # The thread

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        received = b""
        while True:
            if poll.poll(1000 * (1.0 if self._finished.since else self._tick)):
                try:
                    data = self._socket.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    self._socket.close()
                    self._go_on_alone()
                    if self._hub_process is not None:
                        with contextlib.suppress(ChildProcessError):
                            os.waitpid(self._hub_process, 0)
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
            self._say("state", **(_spelt(waiting.described()) if waiting else {}))
        elif message["say"] == "finished":
            with self._news:
                for rank, counts in message["counts"].items():
                    self._finished.add(int(rank), counts)
                self._news.notify_all()
        elif message["say"] == "news":
            with self._news:
                self._verdict = message
                self._news.notify_all()
            if self._transport.can_be_cut:
                self._transport.cut()
                self._end_if_stuck()
            elif message["kind"] != "failed":  # a worker that failed prints its traceback and aborts the job itself
                self._end_all(message["workers"] if message["kind"] == "died" else [])

    def _end_all(self, gone: list[int]) -> None:
        """Abort the job, unless a living worker of lower rank, which is given a second each, has done so."""
        time.sleep(1.0 * len(set(range(self._transport.rank)) - set(gone)))
        self._transport.abort()

    def _end_if_stuck(self) -> None:
        """Return when this worker leaves; end it if it still waits although its connections were cut."""
        cut = time.monotonic()
        while not self._left:
            time.sleep(1.0)
            waiting = self._transport.waiting
            if waiting is not None and time.monotonic() - max(waiting.since, cut) > STUCK_SECONDS:
                self._say_where_it_waits(self.explain(RuntimeError()))
                self._transport.abort()

    def _say_where_it_waits(self, error: GridwiseError | None) -> None:
        stack = traceback.format_stack(sys._current_frames().get(threading.main_thread().ident or 0))
        lines = [
            "Traceback (most recent call last):\n",
            *stack,
            f"gridwise: {type(error).__name__}: {error}\n",
            GIVEN_UP,
        ]
        original_stderr.say("".join(lines))

    def _look_at_the_clock(self) -> None:
        waiting = self._transport.waiting
        if waiting is None or waiting is self._complained or self._verdict is not None:
            return
        wait = waiting.described()
        by = self._finished.awaited(wait, DESERTED_SECONDS)
        if wait.seconds > self._timeout:
            self._complained = waiting
            self._say("overdue", **_spelt(wait))
        elif by is not None:
            self._complained = waiting
            self._say("deserted", by=by, text=deserted(by, self._transport.size, self._transport.rank, wait))

    def _go_on_alone(self) -> None:
        """After the hub has gone: unless that is part of a normal end, log it, and end overlong waits from here."""
        if self._left or self._verdict is not None:
            return
        logger.error(
            "the watch over the workers has ended before they have: deaths will no longer be named. Waits longer than "
            "`GRIDWISE_TIMEOUT` (=%g) s still end.",
            self._timeout,
        )
        while not self._left:
            time.sleep(self._tick)
            waiting = self._transport.waiting
            if waiting is not None and not self._left and waiting.described().seconds > self._timeout:
                text = f"worker {self._transport.rank} of {self._transport.size} {waiting.described()}, longer than "
                text += f"`GRIDWISE_TIMEOUT` (={self._timeout:g}); the watch, which would say who is missing, has ended"
                if not self._transport.can_be_cut:
                    original_stderr.say(f"\ngridwise: {text}\ngridwise: ending all workers")
                self._take({"say": "news", "kind": "timeout", "text": text, "workers": []})


def _spelt(wait: Wait) -> dict[str, object]:
    return {"what": wait.what, "team": wait.team, "text": str(wait)}
