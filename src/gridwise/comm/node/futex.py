"""Sleeping until another process changes a word of shared memory: the kernel's futex.

    wait(address, seen, seconds)     returns when somebody has woken the word, or its value is not `seen`, or time is over
    wake(address)                    wakes all who sleep on the word
    fence()                          what was read and written before it comes before what is read and written after it

A word is 32 bits. Whoever changes it wakes it afterwards, so nobody sleeps through a change. On Linux only.

Python has no memory barriers. x86 and s390x let everybody see one processor's stores in their order, and that is enough here.
ARM, POWER and RISC-V do not; there a wake-up of nobody serves as the barrier, which the kernel takes on the way (see "full
barrier" in its kernel/futex).
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
_nobody = ctypes.c_uint32()

NEEDS_FENCE = platform.machine() not in ("x86_64", "s390x")
"""Whether a count may be seen by others before the message that it counts, unless a `fence` is between."""


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


def fence() -> None:
    """Keep the order of what this thread reads and writes before and after, as others see it."""
    wake(ctypes.addressof(_nobody))
