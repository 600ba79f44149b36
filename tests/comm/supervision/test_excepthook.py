"""The hook tells the other workers of an exception, whatever has become of the streams that it is printed to."""

from __future__ import annotations

import contextlib
import io
import sys
from types import SimpleNamespace, TracebackType

import pytest

from gridwise.comm.supervision import excepthook
from gridwise.errors import WorkerDied


class Broken(io.StringIO):
    def flush(self) -> None:
        raise BrokenPipeError


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [closed(), Broken(), None])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("hook_fails", [False, True])
def test_the_others_are_told(
    stream: io.StringIO | None, name: str, hook_fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def before(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
        if hook_fails:
            raise ValueError("of the user's own hook")

    monkeypatch.setattr(excepthook, "_end", lambda transport, kind, error: told.append(f"{transport.rank}: {error!r}"))
    monkeypatch.setattr(excepthook, "_installed", [SimpleNamespace(rank=1)])
    monkeypatch.setattr(sys, "excepthook", before)
    excepthook._hook.__wrapped__()
    with monkeypatch.context() as patched:
        patched.setattr(sys, name, stream)
        with pytest.raises(ValueError, match="user's own") if hook_fails else contextlib.nullcontext():
            sys.excepthook(KeyError, KeyError("temperature"), None)
    assert told == ["1: KeyError('temperature')"]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_one_survivor_tells_of_a_death_in_a_few_words(
    rank: int, debug: bool, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    error = WorkerDied("worker 1 of 3 died", (1,))
    error.elsewhere = elsewhere
    monkeypatch.setenv("GRIDWISE_LOG", "debug" if debug else "")
    monkeypatch.setattr(excepthook, "_end", lambda transport, kind, error: None)
    monkeypatch.setattr(excepthook, "_installed", [SimpleNamespace(rank=rank, size=3)])
    monkeypatch.setattr(excepthook.original_stderr, "say", printed.append)
    monkeypatch.setattr(sys, "excepthook", lambda *_: printed.append("a traceback"))
    excepthook._hook.__wrapped__()
    sys.excepthook(WorkerDied, error, None)
    short = ["gridwise: worker 1 of 3 died"] if rank == 0 else []
    assert printed == (short if elsewhere and not debug else ["a traceback"])
