"""`trace`: what a real run computes, sends and waits for, per worker and layer, as it happens.

    with gridwise.trace("out/"):        all workers enter and leave together
        for x, target in batches: ...

    out/trace.txt       a table: per layer and phase, what it computed, sent and waited for
    out/trace.json      for ui.perfetto.dev: a row per worker, an arrow per message
    out/trace.html      the same next to the plan, if one is given
    out/events.json     all of it as data (`read_trace`)

While it is on, a few methods of the transport and of its waits are replaced by timed ones, and a torch dispatch mode times
every operator. While it is off it costs nothing: no call, not even a check whether it is on.

Times are the host's: for an operator on a device, the time that it takes to launch it.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from ...comm.launching import find
from ...comm.messages import wire_dtypes
from ...comm.supervision.waiting import Waiting
from ...comm.transports.base import Team, Transport
from ...errors import PartitionError
from ...local_path import local_path
from ...models.program import watched_steps
from ...torch_internals.autograd import current_node
from ...torch_internals.modes import TorchDispatchMode
from ...torch_internals.operators import OpOverload
from ..current_layer import CurrentLayer
from ..layer_names import layer_of
from ..report import BACKWARD, FORWARD, Plan
from .traced import Event, Traced, Volumes


class trace:
    """Record what this worker does while the body runs; all workers enter and leave together.

    Parameters
    ----------
    folder : where the first worker writes the files; created if missing
    plan : of the same model, to compare with what happened

    Attributes
    ----------
    result : `Traced`, of all workers, after the body has ended; if it raises, there is none and nothing is written

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> model = gridwise.distribute(torch.nn.Conv2d(1, 2, 3), P_x)
    >>> with gridwise.trace("out") as traced:
    ...     model(torch.ones(1, 1, 8, 8)).sum().backward()
    >>> "conv2d" in {row.layer for row in traced.result.rows() if row.phase == "backward"}
    True
    """

    def __init__(self, folder: str | Path, plan: Plan | None = None) -> None:
        self.folder, self.plan = local_path(folder), plan
        self.result: Traced | None = None
        self._stack = ExitStack()

    def __enter__(self) -> trace:
        self._transport = find.current()
        if "count" in vars(self._transport):
            raise PartitionError("trace: this worker is being traced already.\n  fix: one trace at a time.")
        self._transport.barrier()
        self._events = Events(self._transport, time.monotonic())
        self._stack.enter_context(watched_steps(self._events.layers.watch))
        self._stack.enter_context(listening(self._transport, self._events))
        self._stack.enter_context(_Operators(self._events))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        self._stack.close()
        if error is not None:
            return
        transport = self._transport
        mine = {"passes": self._events.layers.passes, "events": [event.as_list() for event in self._events.found]}
        packed = zlib.compress(json.dumps(mine).encode(), 1)
        gathered = transport.gather_bytes(packed, transport.everyone, "the events of a trace")
        workers = [json.loads(zlib.decompress(each)) for each in gathered]
        found = [tuple(Event.of(values) for values in worker["events"]) for worker in workers]
        self.result = Traced(tuple(found), max(worker["passes"] for worker in workers))
        if transport.rank == 0:
            self.result.save(self.folder, self.plan)
        transport.barrier()


class Events:
    """The events of this worker so far."""

    def __init__(self, transport: Transport, start: float) -> None:
        self.transport, self.start = transport, start
        self.layers = CurrentLayer()
        self.found: list[Event] = []
        self.expect("")
        self._begun: dict[tuple[int, tuple[int, ...]], str] = {}
        """The kind of each collective, from when it was begun: waiting for it later enters it again."""

    def expect(self, kind: str, nbytes: int = 0, sent: Volumes = (), received: Volumes = ()) -> None:
        """Set what the next wait is for."""
        self._kind, self._volumes = kind, (nbytes, sent, received)

    def waited(self, waiting: Waiting, end: float) -> None:
        """Record a wait that has ended."""
        call = waiting.number, tuple(waiting.team)
        kind = self._kind or self._begun.get(call) or ("control" if waiting.number else "message")
        if waiting.number and self._kind:
            self._begun[call] = kind
        layer, began, length = layer_of(waiting.what), waiting.since - self.start, end - waiting.since
        self.found.append(Event(kind, layer, _phase(), waiting.what, began, length, call[1], *self._volumes))
        self.expect("")

    def computed(self, name: str, begin: float, end: float) -> None:
        """Record an operator that has run."""
        layer = self.layers.current()
        self.found.append(Event("compute", layer, _phase(), name, begin - self.start, end - begin))


class _Operators(TorchDispatchMode):
    """Times every operator; those that a transport calls are part of its wait."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.is_view or self._events.transport.waiting is not None:
            return func(*args, **(kwargs or {}))
        begin = time.monotonic()
        made = func(*args, **(kwargs or {}))
        self._events.computed(func.overloadpacket.__name__, begin, time.monotonic())
        return made


@contextmanager
def listening(transport: Transport, events: Events) -> Iterator[None]:
    """Replace methods of the transport and of its waits by ones that record events, while the body runs."""
    swapped: dict[str, Callable[..., None]] = {
        "count": lambda sends, receives: events.expect("message", 0, _volumes(sends), _volumes(receives)),
        "all_sum": lambda x, team, *_: events.expect("sum", _summed(_on_wire(x), team)),
        "post_sum": lambda x, team, what="", wire=None: events.expect(
            "sum", _summed(_on_wire(x, wire, len(team)), team)
        ),
        "all_gather": lambda row, team, *_: events.expect("sum", _summed(len(team) * _on_wire(row), team)),
        "sum_to": lambda x, root, team, *_: events.expect("sum", 0 if transport.rank == root else _on_wire(x)),
        "copy_from": lambda x, root, team, *_: events.expect(
            "copy", x.nbytes * (len(team) - 1) if transport.rank == root else 0
        ),
        "all_max": lambda values, *_: events.expect("control", values.nbytes),
    }
    leave = Waiting.__exit__

    def timed(self: Waiting, kind: type | None, error: BaseException | None, traceback: object) -> None:
        end = time.monotonic()
        leave(self, kind, error, traceback)
        if self.transport is transport and self.outer is None:
            events.waited(self, end)

    with ExitStack() as stack:
        for name, note in swapped.items():
            stack.enter_context(patch.object(transport, name, _noted(getattr(transport, name), note)))
        stack.enter_context(patch.object(Waiting, "__exit__", timed))
        yield


def _noted(real: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def call(*args: object, **kwargs: object) -> Any:
        note(*args)
        return real(*args, **kwargs)

    return call


def _volumes(messages: Sequence[tuple[int, Any]]) -> Volumes:
    return tuple(
        (peer, what.nbytes if isinstance(what, Tensor) else sum(view.nbytes for view in what))
        for peer, what in messages
    )


def _on_wire(x: Tensor | np.ndarray, wire: torch.dtype | None = None, workers: int = 1) -> int:
    """Bytes as they are sent: half precision is summed as float32, gradients as the user has set."""
    if isinstance(x, Tensor):
        return x.numel() * wire_dtypes.summed_as(x, wire, workers).itemsize
    return x.nbytes


def _summed(nbytes: int, team: Team) -> int:
    """A worker's share of a sum, as plans count it."""
    return 2 * nbytes * (len(team) - 1) // len(team)


def _phase() -> str:
    return FORWARD if current_node() is None else BACKWARD
