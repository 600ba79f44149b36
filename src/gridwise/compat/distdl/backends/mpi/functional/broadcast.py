"""Copies from the first worker of a team to all of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..partition import MPIPartition
from .carried import carried, copy_between


class BroadcastFunction:
    """Called by `apply`, like a function of autograd; the partitions are those of `create_broadcast_partition_to`."""

    @staticmethod
    def apply(
        input: Tensor,
        P_send: MPIPartition,
        P_recv: MPIPartition,
        preserve_batch: bool,
        input_tensor_structure: Any,
        output_tensor_structure: Any,
    ) -> Tensor:
        if not (P_send.active or P_recv.active):
            return input.clone()
        structures = output_tensor_structure, input_tensor_structure
        copy = copy_between("BroadcastFunction", P_send, P_recv, *structures, preserve_batch)
        return carried(input, copy, output_tensor_structure if P_recv.active else input_tensor_structure)
