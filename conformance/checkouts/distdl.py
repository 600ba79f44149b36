"""DistDL's own tests."""

from __future__ import annotations

from .suite import Suite

run = Suite("distdl", "tests", workers=4).run
