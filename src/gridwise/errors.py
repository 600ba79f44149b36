"""Every error a user can meet, in one place.

All derive from `GridwiseError`. A bad argument, shape or grid is also a `ValueError`; a combination that is not
offered is also a `NotImplementedError`; a fault of a worker, of the network or of time is also a `RuntimeError`.
A message says what was asked, what each offending worker has, and what to do (`describe` puts the three together).
"""

from __future__ import annotations

from collections.abc import Iterable


class GridwiseError(Exception):
    """Base of every error that Gridwise raises on purpose."""


class PartitionError(GridwiseError, ValueError):
    """An argument, a shape or a grid does not fit: nothing was sent and nothing was changed."""


class UnsupportedError(GridwiseError, NotImplementedError):
    """The combination is well formed, but not offered."""


class FaultError(GridwiseError, RuntimeError):
    """Something failed while the workers were talking: the network, a worker, or the time allowed."""


class MismatchError(FaultError):
    """The workers called different operators, or the same ones in another order."""


class WorkerDied(FaultError):
    """A worker's process is gone; `workers` names it."""

    def __init__(self, message: str, workers: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.workers = workers


class WorkerFailed(FaultError):
    """A worker raised an exception that could not be brought back as itself; its traceback is in the text."""


class CommTimeout(FaultError):
    """Some workers waited for others longer than `GRIDWISE_TIMEOUT` seconds."""


class TransportError(FaultError):
    """No way to talk to the other workers was found, or the one that was asked for does not work here."""


class DataError(GridwiseError, RuntimeError):
    """An array or a file cannot be read as samples, or results cannot be written; the message names it."""


class FakeTensorError(GridwiseError, RuntimeError):
    """A fake tensor was asked for something that only a tensor with data can give."""


class DeferredInitError(GridwiseError, RuntimeError):
    """A deferred tensor or module cannot be recorded or made as asked."""


def describe(asked: str, offenders: Iterable[str] = (), fix: str = "") -> str:
    """One message in the house form: what was asked, who offends and with what, what to do."""
    lines = [asked]
    lines += [f"  {line}" for line in offenders]
    if fix:
        lines.append(f"  fix: {fix}")
    return "\n".join(lines)


class CheckpointError(GridwiseError, RuntimeError):
    """A checkpoint could not be written or read. The message says whether anything was changed."""


class CheckpointNotFound(CheckpointError):
    """There is no committed checkpoint at the path: nothing, or only what an interrupted save has left."""


class CheckpointDamaged(CheckpointError):
    """The bytes are not those that were saved: a checksum, a size, a name or the structure is wrong. Nothing was changed."""


class CheckpointMismatch(CheckpointError, ValueError):
    """What is to be filled does not fit what was saved, or the workers disagree. Nothing was changed."""


class CheckpointBusy(CheckpointError):
    """Another save is writing at the same path."""


class CheckpointWriteFailed(CheckpointError):
    """A worker could not write its part: nothing was committed, the previous checkpoint stands."""
