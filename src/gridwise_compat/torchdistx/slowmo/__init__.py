"""Slow momentum."""

from . import slowmo_optimizer as slowmo_optimizer
