"""Whether two communicators or groups are one, and whether they are none."""

from __future__ import annotations

from typing import Any

from .partition import COMM_NULL, GROUP_NULL, PROC_NULL


def check_identical_comm(a: Any, b: Any) -> bool:
    return a is b or bool(a == b)


def check_identical_group(a: Any, b: Any) -> bool:
    return a is b or bool(a == b)


def check_null_comm(comm: Any) -> bool:
    return comm is None or bool(comm == COMM_NULL)


def check_null_group(group: Any) -> bool:
    return group is None or bool(group == GROUP_NULL)


def check_null_rank(rank: Any) -> bool:
    return rank is None or rank == PROC_NULL
