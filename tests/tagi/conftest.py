"""Compiled steps are kept in a folder of the tests' own."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def cache_of_steps(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def steps_kept_apart(cache_of_steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache_of_steps)
