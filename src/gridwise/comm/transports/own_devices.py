"""Whether each worker has a CUDA device of its own, as nccl needs: two workers of one nccl group cannot share a device.

Workers may see different devices (`CUDA_VISIBLE_DEVICES`, `srun --gpus-per-task=1`), and machines may have different numbers
of them. So all workers exchange the UUIDs of the devices that they see, and decide alike.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ...log import logger
from .base import Transport


def can_use_nccl(transport: Transport) -> bool:
    """Whether nccl can carry the CUDA tensors of all workers. Collective, and the same answer on each of them."""
    mine = json.dumps(_visible()).encode()
    said = transport.gather_bytes(mine, transport.everyone, "looking for CUDA devices")
    return are_enough([json.loads(each) for each in said])


def are_enough(visible: Sequence[Sequence[str]]) -> bool:
    """Whether every worker can have a device that no other worker uses, given the devices that each of them sees."""
    taken: set[str] = set()
    for devices in sorted(visible, key=len):  # those with the fewest to choose from choose first
        free = [device for device in devices if device not in taken]
        if not free:
            return False
        taken.add(free[0])
    return True


def _visible() -> list[str]:
    """The UUIDs of the devices that this worker sees; none if it cannot use nccl."""
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        return []
    try:
        return [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
    except RuntimeError as error:
        logger.warning("the CUDA devices of this worker cannot be used: %s", error)
        return []
