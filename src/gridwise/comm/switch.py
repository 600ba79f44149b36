"""A setting that a context manager changes while its body runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Switch(Generic[T]):
    """A setting of a whole run; `to` changes it while a body runs."""

    def __init__(self, value: T) -> None:
        self.value = value

    @contextmanager
    def to(self, value: T) -> Iterator[None]:
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
