"""torchdistX's own tests."""

from __future__ import annotations

from .suite import Suite

run = Suite("torchdistx", "tests/python").run
