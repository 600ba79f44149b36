"""How tensors are sent: as bytes when they are copied, in a wire dtype when they are summed.

Copies need no dtype at all. Sums do, and no library sums every dtype, so each has a wire dtype that represents it exactly:
half and bfloat16 are summed in float32 and rounded once, complex as pairs of reals, short integers in int32 (whose low bits
are those of the short sum), booleans as their logical or. On request, floats are sent in fewer bits than they have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...errors import UnsupportedError

SUMMED_AS: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
    torch.uint8: torch.int32,
    torch.bool: torch.int32,
}

SAME_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""For each size of an element, in bytes, the integers as which numbers can be summed with zeros without a change."""

NARROW_FROM = 1 << 13
"""Size of a tensor, in bytes, from which a narrower wire dtype saves time."""


def summed_as(x: Tensor, wire: torch.dtype | None, workers: int) -> torch.dtype:
    """The dtype in which a real `x` is sent when it is summed over `workers` workers; `wire` is requested for floats."""
    is_worth_it = x.is_floating_point() and x.nbytes >= NARROW_FROM and x.numel() >= workers
    if wire is not None and wire.itemsize < x.element_size() and is_worth_it:
        return wire
    return SUMMED_AS.get(x.dtype, x.dtype)


def as_bytes(x: Tensor) -> Tensor:
    """The memory of a contiguous tensor as a flat uint8 tensor."""
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


def host_buffer(x: Tensor) -> Tensor:
    """An uninitialised host tensor of the same shape and dtype; pinned, because it stands in for a device tensor."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True, device="cpu")


def to_host(x: Tensor) -> Tensor:
    """A contiguous copy on the host."""
    return host_buffer(x).copy_(x)


def check_summable(x: Tensor) -> None:
    """Raise unless tensors of this dtype can be summed over workers."""
    if x.dtype not in SUMMED_AS and not x.is_complex():
        raise UnsupportedError(
            f"tensors of dtype {x.dtype} cannot be summed over workers.\n  fix: convert to one of "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in SUMMED_AS)}, or a complex dtype."
        )


def summed(x: Tensor, reduce: Callable[[Tensor, Tensor], None], carries_cuda: bool) -> Tensor:
    """The sum that ``reduce(total, x)`` writes into a new contiguous `total` of the wire dtype, in x's dtype and device."""
    check_summable(x)
    if x.is_complex():
        pairs = summed(torch.view_as_real(x.resolve_conj()), reduce, carries_cuda)
        return torch.view_as_complex(pairs)
    carrier, device = SUMMED_AS[x.dtype], x.device
    if x.is_cuda and not carries_cuda:
        total = torch.empty(x.shape, dtype=carrier, pin_memory=True, device="cpu")
        x = x.cpu()
    else:
        total = torch.empty(x.shape, dtype=carrier, device=x.device)
    reduce(total, x)
    return total.to(device=device, dtype=x.dtype)
