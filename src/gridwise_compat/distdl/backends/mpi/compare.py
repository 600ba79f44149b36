"""Whether two communicators or groups are identical, and whether a communicator, group or rank is null."""

from __future__ import annotations

from .partition import COMM_NULL, GROUP_NULL, PROC_NULL


def check_identical_comm(a: object, b: object) -> bool:
    return a is b or bool(a == b)


check_identical_group = check_identical_comm


def check_null_comm(comm: object) -> bool:
    return comm is None or bool(comm == COMM_NULL)


def check_null_group(group: object) -> bool:
    return group is None or bool(group == GROUP_NULL)


def check_null_rank(rank: object) -> bool:
    return rank is None or rank == PROC_NULL
