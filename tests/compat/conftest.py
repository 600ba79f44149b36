"""The old names, for one test: what `install()` changes in this process is put back after it.

`install()` writes into `os.environ`, which all processes started later inherit: called while tests are collected, it would
change every test of the run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from gridwise_compat import LIBRARIES, install
from gridwise_compat.finder import VARIABLE


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """For tests that call `install()`: afterwards this process is as it was."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in (VARIABLE, "PYTHONPATH"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever install() writes
        monkeypatch.delenv(name)
    yield monkeypatch
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        del sys.modules[name]


@pytest.fixture
def old_names(isolated: pytest.MonkeyPatch) -> None:
    """`import distdl`, `import torchdistx` and `import pytagi` find Gridwise's in this test, and not after it."""
    install()
