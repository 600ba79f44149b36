"""The hub: a small process with one connection to every worker, which tells all of them who died.

It is a separate process because a launcher that notices the death of a worker kills the others within a millisecond: a
thread in one of them lost that race in 3 of 10 trials, and nobody reported who had died. The hub is not on any launcher's
list, can still report when all workers are gone, and ends when the last connection closes. Worker 0 starts it (see `watch`)
without Gridwise (see `bare_process`), so it starts in 0.1 s and needs 17 MB. It admits only workers of the job, which know
the job's secret (see `authenticated_listener`).

Both sides send one JSON object per line, of at most `LONGEST` bytes.

    worker -> hub   hello    rank, process, host, leftover_files
                    failed   text               an uncaught exception
                    overdue  what, team, text   it has waited longer than GRIDWISE_TIMEOUT; `text` describes the wait
                    deserted by, text           it waits for a worker that has finished
                    state    what, team, text   (the answer to ask; no `what` if it does not wait)
                    goodbye  counts             it ends normally; its numbers of collectives and messages
    hub -> worker   welcome                     from now on its death is noticed
                    ask
                    finished counts             of the workers that have said goodbye
                    news     kind, text, workers   kind = died | failed | timeout; the first one is the cause.
                             elsewhere             whether it has nothing to do with what the other workers call
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from .authenticated_listener import AuthenticatedListener

ANSWER_SECONDS = 2.0
LONELY_SECONDS = 60.0
SEND_SECONDS = 5.0
LONGEST = 1 << 24
Message = dict[str, Any]


@dataclass(eq=False)
class Connection:
    """The connection to a worker; `rank` is None until its hello."""

    socket: socket.socket
    rank: int | None = None
    name: str = ""
    has_left: bool = False
    received: bytearray = field(default_factory=bytearray)

    def send(self, message: Message) -> None:
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # the line may be cut, so nothing may follow it; reading finds the end of file
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class Hub:
    """Which workers are connected, which have left, and what was reported to them."""

    def __init__(self, listener: AuthenticatedListener, size: int, timeout: float, prints_verdict: bool) -> None:
        self.listener = listener
        self.size = size
        self.timeout = timeout
        self.prints_verdict = prints_verdict
        self.workers: dict[int, Connection] = {}
        self.expected = size
        self.verdict: Message | None = None
        self.leftover_files: set[str] = set()
        self.finished: dict[int, dict[str, int]] = {}
        self.states: dict[int, Message] = {}
        self.asked: tuple[float, Message] | None = None
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        deadline = time.monotonic() + LONELY_SECONDS
        while self.workers or (self.expected and not self.verdict and time.monotonic() < deadline):
            # epoll and kqueue report in order of arrival: the first connection to close is that of the first death
            for key, _ in self.selector.select(self._patience()):
                if key.fileobj is not self.listener:
                    self._hear(key.data)
            self._open()  # after known workers; also drops callers that have sent nothing in time
            if self.asked and (len(self.states) == len(self.workers) or time.monotonic() > self.asked[0]):
                self._judge_timeout(self.asked[1])
        if self.verdict:
            for path in self.leftover_files:  # of workers that died before they could remove it
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _patience(self) -> float | None:
        limits = [self.listener.patience(), None if self.workers else 1.0]
        if self.asked:
            limits.append(max(0.0, self.asked[0] - time.monotonic()))
        return min((limit for limit in limits if limit is not None), default=None)

    def _open(self) -> None:
        for connected in self.listener.admitted():
            connected.settimeout(SEND_SECONDS)  # for sending only: it is read only when the selector reports data
            self.selector.register(connected, selectors.EVENT_READ, Connection(connected))

    def _hear(self, caller: Connection) -> None:
        try:
            data = caller.socket.recv(65536)
        except OSError:
            data = b""
        if not data or len(caller.received) > LONGEST:
            self._hang_up(caller)
            return
        caller.received += data
        *lines, caller.received = caller.received.split(b"\n")
        try:
            for line in lines:
                self._take(caller, json.loads(line))
        except Exception:  # an invalid message must not affect the other workers
            self._hang_up(caller)

    def _take(self, caller: Connection, message: Message) -> None:
        say = message["say"]
        if caller.rank is None:
            if say != "hello" or message["rank"] in self.workers:
                raise ValueError("not a worker's first words")
            self.expected -= 1
            caller.rank = message["rank"]
            caller.name = f"worker {caller.rank} of {self.size} (process {message['process']} on {message['host']})"
            self.workers[message["rank"]] = caller
            if message["host"] == socket.gethostname():
                self.leftover_files.update(message["leftover_files"])
            caller.send({"say": "welcome"})
            if self.finished:  # before this worker connected
                caller.send({"say": "finished", "counts": self.finished})
            if self.verdict:
                caller.send(self.verdict)
        elif say == "failed":
            self._judge(
                "failed",
                f"worker {caller.rank} of {self.size} failed: {message['text']}",
                [caller.rank],
                elsewhere=True,
            )
        elif say == "goodbye":
            caller.has_left = True
            self.finished[caller.rank] = message["counts"]
            self._tell_all({"say": "finished", "counts": {caller.rank: message["counts"]}})
        elif say == "state":
            self.states[caller.rank] = message
        elif say == "overdue" and not self.asked and not self.verdict:
            self.asked = (time.monotonic() + ANSWER_SECONDS, {**message, "rank": caller.rank})
            self.states.clear()
            self._tell_all({"say": "ask"})
        elif say == "deserted":
            self._judge("died", message["text"], [message["by"]], aloud=True)

    def _hang_up(self, caller: Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(caller.socket)
        caller.socket.close()
        if caller.rank is None or self.workers.pop(caller.rank, None) is None:
            return
        if not caller.has_left:
            text = f"{caller.name} died: it was killed, or its machine was lost"
            self._judge("died", text, [caller.rank], aloud=True, elsewhere=True)

    def _judge(self, kind: str, text: str, workers: list[int], aloud: bool = False, elsewhere: bool = False) -> None:
        """Report the first failure to all workers; later ones are its consequences and are ignored."""
        if self.verdict:
            return
        self.verdict = {"say": "news", "kind": kind, "text": text, "workers": workers, "elsewhere": elsewhere}
        if aloud and self.prints_verdict:
            with contextlib.suppress(OSError):
                print(f"\ngridwise: {text}\ngridwise: ending all workers", file=sys.stderr, flush=True)
        self._tell_all(self.verdict)

    def _judge_timeout(self, overdue: Message) -> None:
        self.asked = None
        limit = f"longer than `GRIDWISE_TIMEOUT` (={self.timeout:g})"
        text = [f"worker {overdue['rank']} of {self.size} {overdue['text']}, {limit}"]
        missing = []
        for rank in overdue["team"]:
            state = self.states.get(rank, {})
            if state.get("what") != overdue["what"]:
                missing.append(rank)
                text.append(f"  worker {rank} {self._whereabouts(rank, state)}")
        if not missing:
            text.append(f"  workers {tuple(overdue['team'])} are all there: the data or the network is slow")
        text.append("  fix: let every worker call the same operators in the same order, or allow more time")
        self._judge("timeout", "\n".join(text), missing, aloud=True)

    def _whereabouts(self, rank: int, state: Message) -> str:
        if rank in self.finished:
            return "has finished"
        if rank not in self.states:
            return "does not answer"
        return str(state.get("text", "is not there: it waits for nobody, so it is computing or took another branch"))

    def _tell_all(self, message: Message) -> None:
        for worker in list(self.workers.values()):
            worker.send(message)


def main(descriptors: list[str]) -> None:
    """Serve the listening sockets with these descriptors; the settings and the secret come from standard input."""
    settings = json.loads(sys.stdin.readline())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one for each worker
    listener = AuthenticatedListener(
        [socket.socket(fileno=int(number)) for number in descriptors], settings.pop("secret")
    )
    Hub(listener, **settings).run()
