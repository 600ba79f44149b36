"""Sizes of memory: as users write them, what this machine has, and what is free."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from .errors import PartitionError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_C_LIBRARY = ctypes.CDLL(None)
_IS_GLIBC = hasattr(_C_LIBRARY, "gnu_get_libc_version")
_M_MMAP_THRESHOLD, _LARGEST_FREE = -3, 1 << 32
_WORD, _IS_MAPPED = ctypes.sizeof(ctypes.c_size_t), 2
"""Before each block of glibc is a word with its size, and flags: 2 if it is mapped."""
if _IS_GLIBC:
    _C_LIBRARY.malloc.restype, _C_LIBRARY.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    _C_LIBRARY.free.restype, _C_LIBRARY.free.argtypes = None, [ctypes.c_void_p]
_CONTROL_GROUPS, _OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def number_of_bytes(size: str | int, asked: str = "plan", name: str = "memory") -> int:
    """Bytes, from a number or from text such as "40GiB"; `asked` is who asks for the argument `name`, for the error.

    >>> number_of_bytes("1.5GiB") == 3 * 2**29
    True
    """
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", str(size).upper())
    found = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if found < 1:
        raise PartitionError(f"{asked}: `{name}` (={size!r}) is no number of bytes.\n  fix: 40 * 2**30, or '40GiB'.")
    return found


@cache
def largest() -> int:
    """The most bytes that a process can have here: memory and swap, or the limit of its control group if lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + _of_meminfo("SwapTotal")
    return min([total, *(most for most, _ in _control_groups())])


def free(device: torch.device) -> int:
    """The bytes that are free on a device; on the CPU, those that the system can give without swapping."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return min([_of_meminfo("MemAvailable") or largest(), *(max(0, most - now) for most, now in _control_groups())])


def trim() -> None:
    """Give memory that was freed back to the system, where the C library can."""
    trim = getattr(_C_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)


def map_blocks_from(size: int) -> None:
    """Let the C library map blocks of at least so many bytes one by one, and unmap them when they are freed."""
    if _IS_GLIBC:
        _C_LIBRARY.mallopt(_M_MMAP_THRESHOLD, size)


def occupy_free_blocks(size: int) -> list[int]:
    """Take what glibc keeps of freed blocks of at least `size` bytes, unread, so that new ones are mapped: their addresses.

    A free block is used before one is mapped. Taking it costs no memory, because its pages are not touched.
    """
    found: list[int] = []
    if not _IS_GLIBC:
        return found
    asked = _LARGEST_FREE
    while asked >= size:
        address = _C_LIBRARY.malloc(asked)
        if not address or ctypes.c_size_t.from_address(address - _WORD).value & _IS_MAPPED:
            _C_LIBRARY.free(address)
            asked //= 2
        else:
            found.append(address)
    return found


def free_blocks(addresses: list[int]) -> None:
    for address in addresses:
        _C_LIBRARY.free(address)


def _control_groups() -> Iterator[tuple[int, int]]:
    """The limit of each control group around this process, and what is used of it, but for files that can be dropped."""
    with contextlib.suppress(OSError, ValueError):  # there are none
        for line in _OF_PROCESS.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                names = "memory.max", "memory.current", "inactive_file"
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            else:
                continue
            root = _CONTROL_GROUPS / "memory" if controllers else _CONTROL_GROUPS
            inner = root / path.lstrip("/")
            for folder in (inner, *inner.parents):  # in a container, the outermost one that is there is its own
                most, now = _number(folder / names[0]), _number(folder / names[1])
                if most is not None:
                    yield most, (now or 0) - _of_stat(folder / "memory.stat", names[2])
                if folder == root:
                    break


def _of_stat(file: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0


def _of_meminfo(name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return 0


def _number(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # it may say "max"
        return int(file.read_text(encoding="ascii"))
    return None
