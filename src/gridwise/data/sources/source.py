"""The interface of every source of samples: a shape, a dtype, and any box of it, read into the caller's memory.

An array object (NumPy, torch, xarray, dask, h5py, zarr) is used as it is (`ArraySource`); each file format has a module
beside this one. Files are not trusted: Python objects in them are refused, and so is all that leads to other files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...errors import DataError, GridwiseError
from ...grid import Shape

Slices = tuple[slice, ...]
"""A box as a tuple of slices, by which arrays are indexed."""

NUMBERS = "?bhilqBHILQefdFD"
"""Codes of the NumPy dtypes that torch has too."""


class Source(ABC):
    """An array somewhere, of which boxes are read.

    Attributes
    ----------
    label : its name in errors: a path, or a type
    shape, dtype : of the array; the dtype is a native one of NumPy
    """

    label: str
    shape: Shape
    dtype: np.dtype

    def read(self, slices: Slices, out: np.ndarray) -> None:
        """Fill `out`, which has the shape of the box `slices` and the source's dtype, with the numbers in that box."""
        if out.size:
            try:
                self._read(slices, out)
            except Exception as error:
                raise named(error, self.label) from error

    @abstractmethod
    def _read(self, slices: Slices, out: np.ndarray) -> None: ...


class OpenedSource(Source):
    """An array that a library opens, anew in each process that reads."""

    @abstractmethod
    def _open(self) -> Any:
        """The library's array."""

    @cached_property
    def opened(self) -> Any:
        return self._open()

    def _look(self) -> None:
        self.shape, self.dtype = tuple(self.opened.shape), native(self.opened.dtype, self.label)

    def _read(self, slices: Slices, out: np.ndarray) -> None:
        copy_checked(np.asarray(self.opened[slices]), out)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "opened"}


class ArraySource(Source):
    """An object with shape, dtype and slicing."""

    def __init__(self, array: Any) -> None:
        self.label = f"an array of type {type(array).__name__}"
        if isinstance(array, torch.Tensor):
            array = array.detach().cpu().resolve_conj().resolve_neg().numpy()
        for name in ("shape", "dtype", "__getitem__"):
            if not hasattr(array, name):
                raise DataError(
                    f"{self.label} cannot be read as samples: it has no `{name}`.",
                    fix="a path, or an object with shape, dtype and slicing.",
                )
        if _is_masked(array):
            raise DataError(
                f"{self.label} has a mask, which a tensor cannot have.",
                fix="fill what is masked (`array.filled(0)`), and give the mask as an array of its own if it is needed.",
            )
        self.array = array
        try:
            self.shape = tuple(int(n) for n in array.shape)
        except (TypeError, ValueError):  # of dask, after a selection by values
            raise DataError(
                f"{self.label} has the shape {tuple(array.shape)}, which is not known.",
                fix="compute its chunk sizes first (`array.compute_chunk_sizes()` of dask).",
            ) from None
        self.dtype = native(array.dtype, self.label)

    def _read(self, slices: Slices, out: np.ndarray) -> None:
        copy_checked(np.asarray(self.array[slices]), out)

    def __getstate__(self) -> dict[str, object]:
        if not isinstance(self.array, np.ndarray) or isinstance(self.array, np.memmap):
            raise DataError(
                f"{self.label} cannot be sent to a process that reads ahead.",
                fix="give its path, or read ahead in threads: BlockLoader(..., processes=False).",
            )
        return self.__dict__


def _is_masked(array: Any) -> bool:
    """Whether this is a masked array of NumPy, or one of dask or xarray that consists of them."""
    held = (array, getattr(array, "_meta", None), getattr(getattr(array, "data", None), "_meta", None))
    return any(isinstance(each, np.ma.MaskedArray) for each in held)


def copy_checked(found: np.ndarray, out: np.ndarray) -> None:
    """Copy what a library has read; raises if its shape is not the one asked for, instead of broadcasting."""
    if found.shape != out.shape:
        raise DataError(f"a part of shape {out.shape} was asked for, and {found.shape} was read.")
    np.copyto(out, found)


def native(dtype: npt.DTypeLike, label: str) -> np.dtype:
    """The dtype in this machine's byte order; raises unless its values are numbers that torch has."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.char not in NUMBERS:
        raise DataError(
            f"{label} holds values of {dtype}, which are no numbers of torch.",
            fix="real, complex, integer or boolean numbers that torch has; Python objects are never read.",
        )
    return found.newbyteorder("=")


@contextmanager
def reading(label: str, doing: str = "read") -> Iterator[None]:
    """Raise any error in the body as one that names the source."""
    try:
        yield
    except Exception as error:
        raise named(error, label, doing) from error


def named(error: Exception, label: str, doing: str = "read") -> GridwiseError:
    """An error of any library as one that names the source."""
    if isinstance(error, DataError):
        return error if label in str(error) else DataError(f"{label}: {error}")
    if isinstance(error, GridwiseError):
        return error
    if isinstance(error, ImportError):
        fix = "pip install 'gridwise[data]' (h5py, zarr, nibabel)."
        return DataError(f"{label} cannot be {doing}: {error}", fix=fix)
    words = str(error) or type(error).__name__
    return DataError(f"{label} cannot be {doing}: {type(error).__name__}: {words}")
