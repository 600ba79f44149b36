"""A compiled step of a small network on a CPU: called for one batch, or for many at once."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .... import compiling
from ....errors import ArgumentError
from .loops import WorkspacePlan, grouped, program
from .lowering import StepLoops
from .recording import record
from .values import C_TYPES, NotNativeError

MOST_WORK = 1 << 23
"""The most numbers in the network times rows in the batch: beyond, libraries multiply faster than plain loops."""

MOST_LOOPS = 2000
"""The most loops: the compiler takes some milliseconds for each."""

TYPES = {str(dtype): dtype for dtype in C_TYPES}


class NativeStep:
    """The library, the tensors that it returns, and its workspace.

    Parameters
    ----------
    library : with `tagi_step` and `tagi_epoch`
    notes : the size of the workspace, and shape and type of each output
    """

    def __init__(self, library: ctypes.CDLL, notes: dict[str, Any]) -> None:
        self._step, self._epoch = library.tagi_step, library.tagi_epoch
        self._step.restype, self._epoch.restype = ctypes.c_int32, ctypes.c_int64
        self._outputs = [(tuple(shape), TYPES[dtype]) for shape, dtype in notes["outputs"]]
        self._workspace = torch.zeros(notes["workspace"] + 64, dtype=torch.uint8, device="cpu")
        at = self._workspace.data_ptr()
        self._memory = ctypes.c_void_p(at + -at % 64)

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        outputs = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in self._outputs]
        if not self._step(self._memory, _pointers((*tensors, *outputs))):
            raise _bad_index()
        return outputs

    def many(self, whole: Sequence[Tensor], order: Tensor, rows: int, rest: Sequence[Tensor]) -> list[Tensor]:
        """A step for each `rows` of `order`; `whole` has the data, a tensor of one number for all rows, or one per row.

        Returns the outputs of all steps, (batch, ...).
        """
        batches = len(order) // rows
        widths = [0 if t.ndim == 0 else t.stride(0) * t.element_size() for t in whole]
        staging = [t if t.ndim == 0 else torch.empty(rows, *t.shape[1:], dtype=t.dtype, device="cpu") for t in whole]
        outputs = [torch.empty(batches, *shape, dtype=dtype, device="cpu") for shape, dtype in self._outputs]
        places = [len(staging) + len(rest) + k for k in range(len(outputs))]
        sizes = [*places, *(math.prod(shape) * dtype.itemsize for shape, dtype in self._outputs)]
        done = self._epoch(
            self._memory,
            _pointers((*staging, *rest, *outputs)),
            *(ctypes.c_int64(n) for n in (batches, rows)),
            ctypes.c_void_p(order.data_ptr()),
            ctypes.c_int64(len(whole)),
            _pointers(whole),
            (ctypes.c_int64 * len(widths))(*widths),
            ctypes.c_int64(len(outputs)),
            (ctypes.c_int64 * len(sizes))(*sizes),
        )
        if done < batches:
            raise _bad_index()
        return outputs


def _pointers(tensors: Iterable[Tensor]) -> Any:
    addresses = [t.data_ptr() for t in tensors]
    return (ctypes.c_void_p * len(addresses))(*addresses)


def _bad_index() -> ArgumentError:
    return ArgumentError(
        "TrainStep: `index` has a unit that the network does not have.\n  fix: units are counted from 1."
    )


# ---- making one ------------------------------------------------------------------------------------------------------
def native_step(run: Callable[..., list[Tensor]], tensors: Sequence[Tensor], description: str) -> NativeStep:
    """`run`, a step on tensors like these, as a library: from the cache if it is there."""
    rows = tensors[0].shape[0]
    if any(t.device.type != "cpu" for t in tensors) or sum(t.numel() for t in tensors) * rows > MOST_WORK:
        raise NotNativeError("the network is on another device, or large")
    if compiling.compiler() is None:
        raise NotNativeError("there is no C++ compiler")
    key = compiling.key_of(description)
    kept = compiling.cached(key)
    if kept is not None:
        return NativeStep(*kept)
    copies = [t.detach().clone(memory_format=torch.preserve_format) for t in tensors]
    recorded = record(run, copies)
    lowering = StepLoops(copies, recorded)
    if len(lowering.loops) > MOST_LOOPS:
        raise NotNativeError(f"the step has {len(lowering.loops)} loops")
    groups = grouped(lowering.loops)
    memory = WorkspacePlan(groups)
    outputs = [(tuple(t.shape), str(t.dtype)) for t in recorded.outputs]
    notes = {"workspace": memory.size, "outputs": outputs}
    try:
        return NativeStep(compiling.compiled(key, program(groups, memory), notes), notes)
    except compiling.NoLibraryError as error:
        raise NotNativeError(str(error)) from error


def code_of(classes: Iterable[type]) -> str:
    """A hash of the code that layers of these classes run."""
    package = str(Path(__file__).parents[2])
    others = sorted({_file_of(c) for c in classes})
    return _hash_of(package, tuple(path for path in others if not path.startswith(package)))


def _file_of(layer: type) -> str:
    try:
        path = inspect.getsourcefile(sys.modules[layer.__module__])
    except (KeyError, TypeError):
        path = None
    if path is None:
        raise NotNativeError(f"the source of {layer.__name__} is not known")
    return path


@functools.cache
def _hash_of(package: str, others: tuple[str, ...]) -> str:
    found = hashlib.sha256()
    for path in [*sorted(Path(package).rglob("*.py")), *map(Path, others)]:
        found.update(path.read_bytes())
    return found.hexdigest()
