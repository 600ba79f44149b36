"""Buffers for the messages of a halo exchange, for those who make their own: Gridwise's layers need none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...utilities.dtype import torch_to_numpy_dtype_dict
from ...utilities.slicing import compute_nd_slice_shape
from .buffer import MPIBufferManager, MPIExpandableBuffer


def allocate_halo_exchange_buffers(
    buffer_manager: MPIBufferManager,
    slices: Sequence[Sequence[Sequence[slice]]],
    recv_buffer_shape: Any,
    send_buffer_shape: Any,
    dtype: Any,
) -> list[list[MPIExpandableBuffer | None]]:
    """For each dim the buffers of left bulk, left ghost, right bulk and right ghost, None for one that stays empty.

    Dims are exchanged one after the other, so all of them share four buffers.
    """
    four = buffer_manager.request_buffers(4, dtype=torch_to_numpy_dtype_dict[dtype])
    send, recv = np.asarray(send_buffer_shape), np.asarray(recv_buffer_shape)
    found: list[list[MPIExpandableBuffer | None]] = []
    for d, regions in enumerate(slices):
        widths = send[d, 0], recv[d, 0], send[d, 1], recv[d, 1]
        found.append([buffer if width > 0 else None for buffer, width in zip(four, widths, strict=True)])
        for buffer, region in zip(found[-1], regions, strict=True):
            if buffer is not None:
                buffer.allocate_view(compute_nd_slice_shape(region).tolist())
    return found
