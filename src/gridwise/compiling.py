"""C++ to a loaded library: the compiler of this machine, and a cache on disk.

    cache    ~/.cache/gridwise/compiled (or below $XDG_CACHE_HOME): <key>.so and <key>.json, written whole or not at all
    key      everything that the program depends on, this machine's processor and compiler included

A cache that others can write to is not used: it would run their code.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FLAGS = (
    *("-std=c++17", "-O2", "-ftree-vectorize", "-fopenmp-simd"),
    *("-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"),
)
"""Nothing that lets the compiler assume that values are finite, or sum in another order where that is not said."""

TIME_LIMIT = 120.0
"""Seconds for the compiler."""


class NoLibraryError(Exception):
    """There is no compiler here, or it failed."""


@functools.cache
def compiler() -> tuple[str, ...] | None:
    """The command of a C++ compiler, and its version; None if there is none."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            try:
                version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
            except (OSError, subprocess.SubprocessError):
                continue
            return path, version.stdout.partition("\n")[0]
    return None


@functools.cache
def vector_flags() -> tuple[str, ...]:
    """The vector units to use: AVX2 where it is there, otherwise what every processor of this kind has.

    Not `-march=native`: with that, gcc 12 makes wrong code for some processors with AVX-512.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return ()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return ("-mavx2", "-mfma") if {"avx2", "fma"} <= set(flags) else ()


def cache_folder() -> Path | None:
    """The folder of compiled steps, made if need be; None if it cannot be had, or others can write to it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "gridwise" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or not os.access(folder, os.W_OK):
        return None
    return folder


def key_of(description: str) -> str:
    """The key of a program with this description, on this machine."""
    parts = description, platform.machine(), *(compiler() or ()), *FLAGS, *vector_flags()
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def cached(key: str) -> tuple[ctypes.CDLL, Any] | None:
    """The library with this key and the notes that it was kept with, if they are in the cache."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        return ctypes.CDLL(str(folder / f"{key}.so")), json.loads((folder / f"{key}.json").read_text())
    except (OSError, ValueError):
        return None


def compiled(key: str, source: str, notes: Any, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """The library made of `source`, kept in the cache with `notes`; `flags` are further ones of the compiler."""
    command = compiler()
    if command is None:
        raise NoLibraryError("there is no C++ compiler")
    folder = cache_folder()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        code, library = Path(scratch) / "code.cpp", Path(scratch) / "library.so"
        code.write_text(source)
        try:
            done = subprocess.run(
                [command[0], *FLAGS, *vector_flags(), str(code), *flags, "-o", str(library)],
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise NoLibraryError(f"{command[0]} failed: {error}") from error
        if done.returncode:
            raise NoLibraryError(f"{command[0]} failed: {done.stderr[:2000]}")
        if folder is None:
            return ctypes.CDLL(str(library))
        (Path(scratch) / "notes").write_text(json.dumps(notes))
        os.replace(Path(scratch) / "notes", folder / f"{key}.json")
        os.replace(library, folder / f"{key}.so")
    return ctypes.CDLL(str(folder / f"{key}.so"))
