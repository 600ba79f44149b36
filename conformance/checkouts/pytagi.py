"""pytagi's own tests."""

from __future__ import annotations

from .suite import Suite

run = Suite("pytagi", "test").run
