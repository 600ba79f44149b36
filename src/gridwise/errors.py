"""Every error a user can meet, in one place.

All derive from `GridwiseError`. A bad argument, shape or grid is also a `ValueError`; an unsupported combination is also a
`NotImplementedError`; a worker or network failure, a timeout, or an error of Gridwise itself is also a `RuntimeError`.
A message says what was asked, what each offending worker has, and what to do: the three arguments of every error here. Below
it, a traceback names the place in the documents that is about this class; `str(error)` is the message alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

PAGE = "docs/errors.md"


class GridwiseError(Exception):
    """Base of every error that Gridwise raises on purpose.

    Parameters
    ----------
    asked : what was asked, and why it is not possible
    offenders : a line for each worker, or value, that is at fault
    fix : what to do

    Examples
    --------
    >>> try:
    ...     gridwise.world().create_cartesian_topology_partition([2, 2])
    ... except gridwise.errors.GridwiseError as error:
    ...     print(type(error).__name__, error.page)
    PartitionError docs/errors.md#partitionerror
    """

    page: ClassVar[str] = f"{PAGE}#gridwiseerror"
    """Where the documents say what its causes are, and what to do."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:  # others are of the kind they derive from
            cls.page = f"{PAGE}#{cls.__name__.lower()}"

    def __init__(self, asked: str = "", offenders: Iterable[str] = (), fix: str = "") -> None:
        super().__init__(describe(asked, offenders, fix))
        self.add_note(f"  about it: {self.page}")


class ArgumentError(GridwiseError, ValueError):
    """An argument, a setting or the shape of an input is wrong: nothing was changed.

    Examples
    --------
    >>> try:
    ...     gridwise.tagi.nn.Linear(2, 2, init_method="Hee")
    ... except gridwise.errors.ArgumentError as error:
    ...     print("`init_method`" in str(error))
    True
    """


class PartitionError(ArgumentError):
    """An argument, a shape or a grid does not fit a partition: nothing was sent and nothing was changed.

    Examples
    --------
    >>> try:
    ...     gridwise.world().create_partition_inclusive([7])
    ... except gridwise.errors.PartitionError as error:
    ...     print('worker 7' in str(error))
    True
    """


class UnsupportedError(GridwiseError, NotImplementedError):
    """The combination is valid, but not supported.

    Examples
    --------
    >>> issubclass(gridwise.errors.UnsupportedError, gridwise.errors.GridwiseError)
    True
    """


class InternalError(GridwiseError, RuntimeError):
    """Gridwise itself failed, not what was asked of it; the message has the versions that a report of it needs.

    Examples
    --------
    >>> issubclass(gridwise.errors.InternalError, gridwise.errors.PartitionError)
    False
    """


class FaultError(GridwiseError, RuntimeError):
    """Communication between the workers failed: because of the network, a worker, or a timeout.

    Examples
    --------
    >>> issubclass(gridwise.errors.FaultError, gridwise.errors.GridwiseError)
    True
    """


class MismatchError(FaultError):
    """The workers called different operators, or the same ones in another order.

    Examples
    --------
    >>> issubclass(gridwise.errors.MismatchError, gridwise.errors.GridwiseError)
    True
    """


class WorkerDied(FaultError):
    """A worker's process is gone; `workers` names it.

    Parameters
    ----------
    message : what happened, the same on all workers
    workers : the ranks that are gone

    Examples
    --------
    >>> gridwise.errors.WorkerDied('worker 3 has died', (3,)).workers
    (3,)
    """

    elsewhere: bool = False
    """Whether it was killed or has failed: what this worker was doing has nothing to do with it."""

    def __init__(self, message: str, workers: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.workers = workers


class WorkerFailed(FaultError):
    """A worker raised an exception that could not be sent back as an object; the message contains its traceback.

    Examples
    --------
    >>> issubclass(gridwise.errors.WorkerFailed, gridwise.errors.GridwiseError)
    True
    """


class CommTimeout(FaultError):
    """Some workers waited for others longer than `GRIDWISE_TIMEOUT` seconds.

    Examples
    --------
    >>> issubclass(gridwise.errors.CommTimeout, gridwise.errors.FaultError)
    True
    """


class TransportError(FaultError):
    """No transport to the other workers was found, or the one that was asked for does not work here.

    Examples
    --------
    >>> issubclass(gridwise.errors.TransportError, gridwise.errors.GridwiseError)
    True
    """


class DataError(GridwiseError, RuntimeError):
    """An array or a file cannot be read as samples, or results cannot be written; the message names it.

    Examples
    --------
    >>> try:
    ...     gridwise.data.BlockDataset("nowhere.npy", gridwise.world())
    ... except gridwise.errors.DataError as error:
    ...     print("nowhere.npy" in str(error))
    True
    """


class FakeTensorError(GridwiseError, RuntimeError):
    """A fake tensor was asked for something that only a tensor with data can give.

    Examples
    --------
    >>> with gridwise.fake.fake_mode():
    ...     x = torch.ones(3)
    >>> try:
    ...     x.tolist()
    ... except gridwise.errors.FakeTensorError:
    ...     print('a fake tensor has no numbers')
    a fake tensor has no numbers
    """


class DeferredInitError(GridwiseError, RuntimeError):
    """A deferred tensor or module cannot be recorded or materialised as asked.

    Examples
    --------
    >>> issubclass(gridwise.errors.DeferredInitError, gridwise.errors.GridwiseError)
    True
    """


def describe(asked: str, offenders: Iterable[str] = (), fix: str = "") -> str:
    """An error message in the common form: what was asked, what each offender has, what to do."""
    lines = [asked]
    lines += [f"  {line}" for line in offenders]
    if fix:
        lines.append(f"  fix: {fix}")
    return "\n".join(lines)


class CheckpointError(GridwiseError, RuntimeError):
    """A checkpoint could not be written or read. The message says whether anything was changed.

    Examples
    --------
    >>> issubclass(gridwise.errors.CheckpointError, gridwise.errors.GridwiseError)
    True
    """


class CheckpointNotFound(CheckpointError):
    """There is no committed checkpoint at the path: it is empty, or holds only the remains of an interrupted save.

    Examples
    --------
    >>> try:
    ...     gridwise.checkpoint.load('nowhere')
    ... except gridwise.errors.CheckpointNotFound:
    ...     print('start from the beginning')
    start from the beginning
    """


class CheckpointDamaged(CheckpointError):
    """The bytes are not those that were saved: a checksum, a size, a name or the structure is wrong. Nothing was changed.

    Examples
    --------
    >>> issubclass(gridwise.errors.CheckpointDamaged, gridwise.errors.CheckpointError)
    True
    """


class CheckpointMismatch(CheckpointError, ValueError):
    """The target does not match what was saved, or the workers disagree. Nothing was changed.

    Examples
    --------
    >>> issubclass(gridwise.errors.CheckpointMismatch, gridwise.errors.CheckpointError)
    True
    """


class CheckpointBusy(CheckpointError):
    """Another save is writing at the same path.

    Examples
    --------
    >>> issubclass(gridwise.errors.CheckpointBusy, gridwise.errors.CheckpointError)
    True
    """


class CheckpointWriteFailed(CheckpointError):
    """A worker could not write its part: nothing was committed, and the previous checkpoint is intact.

    Examples
    --------
    >>> issubclass(gridwise.errors.CheckpointWriteFailed, gridwise.errors.CheckpointError)
    True
    """


class SameBlocks(UserWarning):
    """All workers along a cut axis have passed the same block: perhaps each of them passed the whole tensor.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter('error', gridwise.errors.SameBlocks)  # raised on all workers
    """


class LocalLoss(UserWarning):
    """A mean over each worker's block was differentiated: the gradients are sums of local means.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter('error', gridwise.errors.LocalLoss)  # raised on all workers
    """
