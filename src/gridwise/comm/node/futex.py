"""Sleeping until another process changes a word of shared memory: the kernel's futex.

    wait(address, seen, seconds)     returns when the word is woken, its value is not `seen`, or the time is up
    wake(address)                    wakes all processes that sleep on the word
    fence()                          orders all reads and writes before it before all reads and writes after it

A word has 32 bits. Whoever changes it wakes it afterwards, so nobody sleeps through a change. Linux only.

Python has no memory barriers. On x86 and s390x all processors see one processor's stores in order, which is enough between a
message and its count. But a load may overtake an earlier store, so a `fence` is needed where a worker stores a word of its
own and then loads a word of another that does the reverse: "I have rung" against "I sleep", "the slot is free" against "the
slot is filled". There, taking a lock serves as the fence: it executes an atomic instruction, and takes 0.1 us.

On ARM, POWER and RISC-V stores may be seen in any order. There, waking a word that nobody sleeps on serves as the fence,
because the kernel executes one on the way (see "full barrier" in its kernel/futex). A doorbell may still be seen there before
the count that it announces, and the reader then sleeps through it, but for no longer than `mailboxes.SLICE`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_WAIT, _WAKE, _ALL = 0, 1, 0x7FFFFFFF

_number = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
_syscall = ctypes.CDLL(None).syscall if _number is not None else None
_nobody = ctypes.c_uint32()
_lock = threading.Lock()

NEEDS_FENCE = platform.machine() not in ("x86_64", "s390x")
"""Whether other processors may see a count before the message that it counts, unless a `fence` separates the two."""


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def is_available() -> bool:
    """Whether this machine has futexes that we can call, and anonymous files (`memfd_create`) to put them in."""
    return _syscall is not None and hasattr(os, "memfd_create")


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleep while the word at `address` is `seen`, until it is woken or `seconds` have passed."""
    whole = int(seconds)
    limit = _Time(whole, int((seconds - whole) * 1e9))
    assert _syscall is not None
    _syscall(_number, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen), ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake all processes that sleep on the word at `address`."""
    assert _syscall is not None
    _syscall(_number, ctypes.c_void_p(address), _WAKE, _ALL, None, None, 0)


def fence() -> None:
    """Order this thread's earlier reads and writes before its later ones, as seen by other processors."""
    if NEEDS_FENCE:
        wake(ctypes.addressof(_nobody))
    elif _lock.acquire(blocking=False):  # an interrupt between the two calls must not leave other threads waiting
        _lock.release()
