"""The hook tells the other workers of an exception, whatever has become of the streams that it is printed to."""

from __future__ import annotations

import contextlib
import io
import sys
from types import SimpleNamespace, TracebackType

import pytest

from gridwise.comm.supervision import excepthook


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
