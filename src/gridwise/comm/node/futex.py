"""Sleeping until another process changes a word of shared memory: the kernel's futex.

    wait(address, seen, seconds)     returns when somebody has woken the word, or its value is not `seen`, or time is over
    wake(address)                    wakes all who sleep on the word

A word is 32 bits. Whoever changes it wakes it afterwards, so nobody sleeps through a change. On Linux only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_WAIT, _WAKE, _ALL = 0, 1, 0x7FFFFFFF

_number = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
_syscall = ctypes.CDLL(None).syscall if _number is not None else None


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def is_available() -> bool:
    """Whether this machine has futexes that we know how to call, and anonymous files to put them in."""
    return _syscall is not None and hasattr(os, "memfd_create")


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleep while the word at `address` is `seen`, until it is woken, but no longer than this."""
    whole = int(seconds)
    limit = _Time(whole, int((seconds - whole) * 1e9))
    assert _syscall is not None
    _syscall(_number, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen), ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake all who sleep on the word at `address`."""
    assert _syscall is not None
    _syscall(_number, ctypes.c_void_p(address), _WAKE, _ALL, None, None, 0)
