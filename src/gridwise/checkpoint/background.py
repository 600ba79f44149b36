"""placeholder."""
from __future__ import annotations
from .talk import Talk
def settle(talk: Talk) -> None: ...
