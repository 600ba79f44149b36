"""Save while training goes on: the state is copied once, the rest happens in a thread.

    async_save    copy this worker's part (`staging`); lock and agree as `save` does
    thread        write and sync the data file; leave a note `w3.part` in the data folder that lists what is in it
    first worker  its thread waits for all notes, compares, commits

The threads exchange no messages, because training may be using the transport: the notes in the folder tell the first
worker all it needs, so a checkpoint is committed as soon as the last worker has written, without any further call. One
save is in flight at a time. The next call of `save`, `async_save`, `load` or `Pending.wait` on the same workers waits
for it, and raises what went wrong, on all of them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ...comm.settings import timeout
from ...errors import CheckpointError, CheckpointWriteFailed
from ...log import logger
from ...partition import Partition
from .. import disk
from ..consensus import Consensus, collector_paused, in_flight
from ..state.flatten import Flat, flatten
from ..store_path import Place, StorePath, place_of
from .folder import Saving
from .manifest_assembly import WrittenPart
from .saving import NOTHING_COMMITTED, commit, start, write_part
from .staging import Staged
from .store_saving import StoreSaving
from .write_shares import Shares, shares_of

POLL = 0.01
"""Seconds between two checks for the other workers' notes."""

POLL_STORE = 0.25
"""The same in a store, where each is a request."""

AT_THE_START = 0.002
"""Seconds that the thread waits first, so that the caller keeps the interpreter and returns to training."""

AT_THE_END = 60.0
"""Seconds for which a program that has ended waits for the other workers' notes."""


def async_save(
    path: str | os.PathLike[str],
    state: object,
    P: Partition | None = None,
    *,
    metadata: Mapping[str, object] | None = None,
) -> Pending | None:
    """Save like `save`, but return as soon as the state is copied; training may go on and change it.

    Returns an object whose `wait()` returns when the checkpoint is committed, or raises; None on workers outside `P`. A
    failure that nobody has waited for is raised by the next save or load on the same workers.

    Parameters
    ----------
    path, state, P, metadata : as in `save`

    Notes
    -----
    Memory: one copy of this worker's part of the state, and at most 1 KiB for each tensor, allocated by the first call
    and reused by later ones.

    Examples
    --------
    >>> pending = checkpoint.async_save(path, {"model": model, "step": 100})
    >>> pending.wait()
    """
    if P is not None and not P.active:
        return None
    place = place_of(path)
    consensus = Consensus(P, "saving", place)
    consensus.settle()
    with collector_paused():
        pending = _started(consensus, place, state, metadata)
    in_flight[consensus.transport, consensus.team] = pending.wait
    pending.start()
    return pending


def _started(consensus: Consensus, path: Place, state: object, metadata: Mapping[str, object] | None) -> Pending:
    copies: list[Staged] = []

    def copied(in_groups: bool) -> tuple[Flat, Staged]:
        _give_back(copies)
        flat = flatten(state, consensus.rank, consensus.index, in_groups, metadata)
        try:
            copies.append(Staged(flat, consensus.transport))
        except Exception as error:
            raise CheckpointWriteFailed(f"the state cannot be copied: {error!r}") from error
        return flat, copies[0]

    try:
        # Plain tensors stay in groups: the thread has time to give them entries of their own.
        _, staged, saving, save_id = start(consensus, path, copied, in_groups=True)
    except BaseException:
        _give_back(copies)
        raise
    return Pending(consensus, path / f"data-{save_id}", save_id, staged, saving)


def _give_back(copies: list[Staged]) -> None:
    while copies:
        copies.pop().give_back()


class Pending:
    """A save in flight.

    Parameters
    ----------
    consensus, folder, save_id, staged, saving : made by `async_save`

    Examples
    --------
    >>> pending = checkpoint.async_save(path, {'model': model})
    >>> pending.wait()
    """

    def __init__(
        self, consensus: Consensus, folder: Place, save_id: str, staged: Staged, saving: Saving | StoreSaving | None
    ) -> None:
        self.consensus = consensus
        self._folder, self._id, self._staged, self._saving = folder, save_id, [staged], saving
        self._written = threading.Event()
        self._given_up = threading.Event()
        self._write_error: Exception | None = None
        self._commit_error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"gridwise-save-{save_id[:8]}")
        self._settled = False
        self._failure: BaseException | None = None

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no more threads
            logger.warning("%s: %s; it is written before training goes on", self.consensus.what, error)
            self._run()

    def _join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def done(self) -> bool:
        """Whether this worker has nothing left to do; on the first worker: whether it is committed, or has failed."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Return when the checkpoint is committed; raise on all workers if it is not. All workers call this together."""
        if self._failure is not None:
            raise self._failure
        if self._settled:
            return
        self._written.wait()
        try:
            self.consensus.agree(self._write_error, CheckpointWriteFailed, NOTHING_COMMITTED)
            self._join()
            self.consensus.agree(self._commit_error, CheckpointWriteFailed)
        except BaseException as error:
            self._failure = error
            # Only now is nobody writing into the data folder any more.
            self._given_up.set()
            self._join()
            if self._saving is not None:
                self._saving.abandon()
            raise
        finally:
            self._settled = True
            if in_flight.get((self.consensus.transport, self.consensus.team)) == self.wait:
                del in_flight[self.consensus.transport, self.consensus.team]

    # In the thread

    def _run(self) -> None:
        time.sleep(AT_THE_START)
        flat, shares, part = self._write()
        if self._saving is None:
            return
        try:
            if part is None:
                raise CheckpointError("this worker could not write its part.")
            commit(self._saving, part, self._notes_of_others(), flat, shares, self.consensus)
        except Exception as error:
            self._commit_error = error
            logger.error("%s failed: %s", self.consensus.what, error)
            if _program_ends():  # nobody will call `wait`
                print(f"gridwise: {self.consensus.what} failed: {error}", file=sys.stderr)

    def _write(self) -> tuple[Flat, Shares, WrittenPart | None]:
        place = self.consensus.index
        flat, shares, part, staged = Flat(), Shares(), None, None
        try:
            staged = self._staged.pop()
            flat = staged.flat()
            staged.free()  # the caller's own tensors are not needed any more
            shares = shares_of(flat.tensors, self.consensus.size)
            part = write_part(self._folder, self._id, place, flat, shares, self.consensus.size)
            if place:
                _leave_note(self._folder, place, part)
        except Exception as error:
            self._write_error = error
            part = None
            if place:
                with contextlib.suppress(OSError, CheckpointError):  # then `wait` tells the first worker
                    (self._folder / f"w{place}.failed").touch()
        finally:
            if staged is not None:
                staged.give_back()
        self._written.set()
        return flat, shares, part

    def _notes_of_others(self) -> list[bytes]:
        """The other workers' notes, as soon as all of them have written."""
        deadline = time.monotonic() + timeout()
        notes = []
        for place in range(1, self.consensus.size):
            note = self._folder / f"w{place}.part"
            while not note.exists():
                if (self._folder / f"w{place}.failed").exists():
                    raise CheckpointError(f"worker {self.consensus.P.ranks[place]} could not write its part.")
                if _program_ends():
                    deadline = min(deadline, time.monotonic() + AT_THE_END)
                if self._given_up.is_set() or time.monotonic() > deadline:
                    raise CheckpointError(f"worker {self.consensus.P.ranks[place]} has not written its part.")
                time.sleep(POLL if isinstance(note, Path) else POLL_STORE)
            notes.append(note.read_bytes())
        for place in range(1, self.consensus.size):
            (self._folder / f"w{place}.part").unlink()
        return notes


def _program_ends() -> bool:
    """Whether the main thread has ended: Python still waits for this one, so that the checkpoint is not lost."""
    return not threading.main_thread().is_alive()


def _leave_note(folder: Place, place: int, part: WrittenPart) -> None:
    if isinstance(folder, StorePath):  # an object is there when it is whole
        (folder / f"w{place}.part").write_bytes(part.to_bytes())
        return
    draft = folder / f"w{place}.part.tmp"
    draft.write_bytes(part.to_bytes())
    disk.rename(draft, folder / f"w{place}.part")
