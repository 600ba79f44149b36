"""Queries about CUDA devices, under pytagi's names; without a driver availability is False and counts are 0."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..errors import ArgumentError
from ..nn.docstrings import documented_like


def is_available() -> bool:
    """Whether a CUDA device can be used.

    Examples
    --------
    >>> gridwise.tagi.cuda.is_available() in (True, False)
    True
    """
    return torch.cuda.is_available()


def is_nccl_available() -> bool:
    """Whether this torch has NCCL and there is a device to use it on.

    Examples
    --------
    >>> gridwise.tagi.cuda.is_nccl_available() in (True, False)
    True
    """
    return is_available() and dist.is_available() and dist.is_nccl_available()


def get_device_count() -> int:
    """The number of CUDA devices.

    Examples
    --------
    >>> gridwise.tagi.cuda.get_device_count() >= 0
    True
    """
    return torch.cuda.device_count() if is_available() else 0


def get_current_device() -> int:
    """The index of the current device.

    Examples
    --------
    >>> if gridwise.tagi.cuda.is_available():
    ...     gridwise.tagi.cuda.get_current_device()
    """
    _need_device(0)
    return torch.cuda.current_device()


def is_device_available(device_index: int) -> bool:
    """Whether the device with this index exists.

    Parameters
    ----------
    device_index : index of the device

    Examples
    --------
    >>> gridwise.tagi.cuda.is_device_available(1000)
    False
    """
    return 0 <= device_index < get_device_count()


def get_device_properties(device_index: int) -> str:
    """Name, compute capability and memory of a device, in one line.

    Parameters
    ----------
    device_index : index of the device

    Examples
    --------
    >>> if gridwise.tagi.cuda.is_available():
    ...     gridwise.tagi.cuda.get_device_properties(0)
    """
    _need_device(device_index)
    p = torch.cuda.get_device_properties(device_index)
    return f"{p.name}, compute capability {p.major}.{p.minor}, {p.total_memory / 2**30:.1f} GiB"


@documented_like(get_device_properties)
def get_device_memory(device_index: int) -> tuple[int, int]:
    """Total and free memory of a device, in bytes."""
    _need_device(device_index)
    free, total = torch.cuda.mem_get_info(device_index)
    return total, free


@documented_like(get_device_properties)
def set_device(device_index: int) -> bool:
    """Use this device from now on; False if it does not exist."""
    if not is_device_available(device_index):
        return False
    torch.cuda.set_device(device_index)
    return True


def _need_device(device_index: int) -> None:
    if not is_device_available(device_index):
        raise ArgumentError(f"cuda: device {device_index} was asked for, there are {get_device_count()}.")
