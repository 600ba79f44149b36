"""One outcome for all workers: a step that fails on one of them, or has another result there, is an error on all.

Errors of single batches do not end an epoch: see `EpochOutcomes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from ..comm.agreement import gather_lines, key_of, opening
from ..comm.transports.base import Team, Transport
from ..errors import DataError, FaultError, GridwiseError

Result = TypeVar("Result")


def together(
    transport: Transport,
    team: Team,
    what: str,
    step: Callable[[], Result],
    says: Callable[[Result], str] = lambda _: "",
) -> Result:
    """The result of `step`, if it fails on no worker of the team and `says` describes it alike on all of them.

    One all-reduce; workers outside the team run the step alone.
    """
    result: Result | None = None
    words, problem, failure = "", None, None
    try:
        result = step()
        words = says(result)
    except FaultError:  # of the transport, which has told all workers
        raise
    except Exception as error:
        is_told = isinstance(error, GridwiseError | OSError | MemoryError)
        problem = (str(error) if is_told else "") or f"{type(error).__name__}: {error}"
        if len(team) == 1 or transport.rank not in team:
            if isinstance(error, OSError | MemoryError):
                raise DataError(f"{what}: {problem}") from error
            raise
        failure = error
    if transport.rank not in team:
        return cast(Result, result)
    found = opening(transport, team, what, key_of(what), key_of(words), problem is not None)
    if found.problem:
        raise DataError(f"{what} failed.", gather_lines(transport, team, problem)) from failure
    if not found.is_common:
        raise DataError(f"{what} needs the same on all workers.", gather_lines(transport, team, words))
    return cast(Result, result)


class EpochOutcomes:
    """An iterator over what `found` yields, which raises the `DataError`s among it and then goes on.

    A generator that raises has ended: the loop that catches the error would find the epoch over.
    """

    def __init__(self, found: Iterator[Any]) -> None:
        self._found = found

    def __iter__(self) -> EpochOutcomes:
        return self

    def __next__(self) -> Any:
        batch = next(self._found)
        if isinstance(batch, DataError):
            raise batch
        return batch
