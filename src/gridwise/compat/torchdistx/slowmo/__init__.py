"""Slow momentum."""

from . import slowmo_comm as slowmo_comm
from . import slowmo_optimizer as slowmo_optimizer
