"""Sums over a team, at the first worker of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..partition import MPIPartition
from .carried import carried, copy_between


class SumReduceFunction:
    """Called by `apply`, like a function of autograd; the partitions are those of `create_reduction_partition_to`."""

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
        structures = input_tensor_structure, output_tensor_structure
        copy = copy_between("the adjoint of SumReduceFunction", P_recv, P_send, *structures, preserve_batch)
        return carried(input, copy.adjoint, output_tensor_structure if P_recv.active else input_tensor_structure)
