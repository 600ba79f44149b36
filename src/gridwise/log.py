"""The logger "gridwise", with the worker's name in every line. The root logger is never touched.

Warnings go where Python's logging sends them: to standard error unless the program has configured it. `GRIDWISE_LOG=debug`
(or info, warning, error) sets the level and logs to standard error:

    gridwise worker 2/4 INFO  group of workers (0, 2) made
"""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger("gridwise")

_worker = "-"


class _WorkerName(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.worker = _worker
        return True


def set_worker(rank: int, size: int) -> None:
    """Set the worker's name in all further log lines."""
    global _worker
    _worker = f"{rank}/{size}"


def is_first_worker() -> bool:
    """Whether this process is worker 0, or the only one."""
    return _worker == "-" or _worker.startswith("0/")


def is_debugging() -> bool:
    """Whether `GRIDWISE_LOG=debug` asks for everything."""
    return os.environ.get("GRIDWISE_LOG", "").lower() == "debug"


def configure(level: str | None = None) -> None:
    """Log to standard error at `level`, or else at the level in `GRIDWISE_LOG`; without either, change nothing."""
    level = level or os.environ.get("GRIDWISE_LOG")
    if not level:
        return
    value = logging.getLevelNamesMapping().get(level.upper())
    if value is None:
        raise ValueError(f"`GRIDWISE_LOG` (={level!r}) must be one of debug, info, warning, error.")
    logger.setLevel(value)
    if not any(isinstance(handler, logging.StreamHandler) for handler in logger.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.addFilter(_WorkerName())
        handler.setFormatter(logging.Formatter("gridwise worker %(worker)s %(levelname)-5s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


configure()
