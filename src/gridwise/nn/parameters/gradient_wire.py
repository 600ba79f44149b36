"""The dtype in which gradients are sent when they are summed over the workers that share a parameter: a switch."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import torch

from ...comm.switch import Switch
from ...errors import PartitionError

VARIABLE = "GRIDWISE_GRADIENT_WIRE"
WIRES: dict[str, torch.dtype | None] = {"full": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _from_environment() -> torch.dtype | None:
    text = os.environ.get(VARIABLE, "full")
    if text not in WIRES:
        raise PartitionError(f"`{VARIABLE}` (={text!r}) must be one of {', '.join(WIRES)}.", fix="unset, it is full.")
    return WIRES[text]


_wire = Switch(_from_environment())


def current_wire() -> torch.dtype | None:
    """The dtype that is set; None for each gradient's own."""
    return _wire.value


def gradient_wire(dtype: torch.dtype | None) -> AbstractContextManager[None]:
    """Send gradients in half precision between the workers that share a parameter, while the body runs.

    The setting is read when a layer or model is called, and must be the same on all workers; its backward may come
    later. Half the bytes are sent. Gradients in float32 and float64 are rounded once before they are sent, added in
    their own dtype and rounded once more, whatever the number of workers, and all workers get the same bits. Each
    rounding has a relative error of at most 2**-9 with bfloat16 (8 bits) and 2**-12 with float16 (11 bits). float16
    overflows above 65504 and is coarse below 6e-5: scale the loss with it. Small gradients (8 KiB in all) and integer
    or complex ones are sent as they are.

    For a whole run, set ``GRIDWISE_GRADIENT_WIRE`` to ``bfloat16`` or ``float16``.

    Parameters
    ----------
    dtype : `torch.bfloat16`, `torch.float16`, or None for the gradient's own

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> model = gridwise.distribute(torch.nn.Linear(3, 2), P_x)
    >>> with gridwise.gradient_wire(torch.bfloat16):
    ...     model(torch.ones(4, 3)).sum().backward()
    """
    if dtype not in WIRES.values():
        raise PartitionError(
            f"gradient_wire: gradients cannot travel as {dtype}.", fix="torch.bfloat16, torch.float16, or None."
        )
    return _wire.to(dtype)
