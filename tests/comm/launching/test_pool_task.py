"""A task of a pool by itself, with connections to nobody: which messages count."""

from __future__ import annotations

import pickle
from multiprocessing import Pipe

from gridwise.comm.launching.pool_messages import Failure, Overdue, Result, Task, Whereabouts
from gridwise.comm.launching.pool_task import PoolTask
from gridwise.comm.launching.start import StartedProcesses
from gridwise.comm.supervision.finished_workers import Wait


def test_messages_about_an_earlier_task_are_ignored(tmp_path):
    """A worker may find its wait overdue at the moment when the task ends."""
    ours, theirs = Pipe()
    wait = Wait("a barrier", {0: ("all", 1)}, 9.0)
    for late in (Overdue(1, 9.0), Whereabouts(1, wait, ""), Failure(1, "late", "", None), Result(1, b"", {})):
        theirs.send(late)
    theirs.send(Result(2, pickle.dumps("done"), {}))
    started = StartedProcesses("job", str(tmp_path), None, direct=True)
    with ours, theirs:
        assert PoolTask(Task(2, 1, [], b""), [ours], started, timeout=None).results() == ["done"]
