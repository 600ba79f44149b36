"""Memory for tensors of the CPU that is used again within a budget, as CUDA's tensors have it; in C++, beside this file.

Torch has no such allocator for CPUs, but lets one be set (`c10::SetCPUAllocator`). It is compiled once for a version of torch,
in a second or two, and kept on disk. Without a compiler there is none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from ..compiling import NoLibraryError, cached, compiled, key_of
from ..log import logger

SOURCE = Path(__file__).with_name("page_pool.cpp")


@contextmanager
def page_pool(budget: int) -> Iterator[bool]:
    """Within the body, this thread's tensors use freed memory again; with it, they take no more than `budget` bytes.

    What it gives is whether that can be done here.
    """
    library = _library()
    if library is None:
        yield False
        return
    library.page_pool_enter(budget)
    try:
        yield True
    finally:
        library.page_pool_leave(budget)


@contextmanager
def beside_the_pool() -> Iterator[None]:
    """Tensors that are made in the body do not count: their memory is that of all others, outside of a pool."""
    library = _library() if _library.cache_info().currsize else None  # else nobody has a pool
    depth = 0 if library is None else library.page_pool_depth(0)
    try:
        yield
    finally:
        if library is not None:
            library.page_pool_depth(depth)


def report() -> tuple[int, int]:
    """The most bytes that were in use at a time since the last report, and those that are kept now for others."""
    library, most, kept = _library(), ctypes.c_size_t(), ctypes.c_size_t()
    if library is not None:
        library.page_pool_report(ctypes.byref(most), ctypes.byref(kept))
    return most.value, kept.value


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled pool, installed; None if that cannot be done here."""
    source, folder = SOURCE.read_text(encoding="utf-8"), Path(torch.__file__).parent
    flags = "-std=c++20", f"-I{folder / 'include'}", f"-L{folder / 'lib'}", "-lc10"
    key = key_of("\0".join((source, *flags, torch.__version__)))
    try:
        found = cached(key)
        library = compiled(key, source, None, flags) if found is None else found[0]
    except (NoLibraryError, OSError) as error:
        logger.info("tensors of the CPU get fresh memory each time, which takes longer: %s", error)
        return None
    for name in ("page_pool_enter", "page_pool_leave"):
        getattr(library, name).argtypes = [ctypes.c_size_t]
        getattr(library, name).restype = None
    library.page_pool_install()
    return library
