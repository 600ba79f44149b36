"""Random numbers as a function of a key and the global index of an element, whatever boxes a tensor is cut into.

    bits(key, i) = mix(key + (i + 1) g)         g = 2^64 / golden ratio, arithmetic modulo 2^64

`mix` is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014): three shifts and two multiplications, which torch runs
on any device. While a step is captured as CUDA graphs, a key is a tensor on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...grid import Box, Shape

GAMMA = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
AT_ONCE, AT_ONCE_ON_DEVICE = 1 << 16, 1 << 26
"""How many elements are mixed at a time: few enough to stay in the cache (CPU), or to fit into memory (device)."""

Key = int | Tensor


def keep_mask(key: Key, drop: float, shape: Shape, block: Box, device: torch.device) -> Tensor:
    """Which elements of a block are kept, each dropped with probability `drop`, by their index in the global `shape`."""
    threshold = min(int(drop * 2**64), 2**64 - 1) - 2**63  # compared as signed integers
    row = _offsets(shape[-1:], block.start[-1:], block.stop[-1:], device)
    lead = _offsets(shape[:-1], block.start[:-1], block.stop[:-1], device) * shape[-1]
    keep = torch.empty(lead.numel(), row.numel(), dtype=torch.bool, device=device)
    at_once = AT_ONCE if device.type == "cpu" else AT_ONCE_ON_DEVICE
    step = max(1, at_once // max(1, row.numel()))
    for start in range(0, lead.numel(), step):
        bits = lead[start : start + step, None] + row
        torch.ge(_mixed(bits, key), threshold, out=keep[start : start + step])
    return keep.view(block.shape)


def flat_positions(shape: Sequence[int], block: Box) -> Tensor:
    """The row-major positions of a block's elements in a tensor of `shape`, in order."""
    return _offsets(tuple(shape), block.start, block.stop, torch.device("cpu"))


def _offsets(shape: Shape, start: Shape, stop: Shape, device: torch.device) -> Tensor:
    """The row-major positions of a block's elements, in order, flat."""
    positions = torch.zeros(1, dtype=torch.int64, device=device)
    for extent, first, last in zip(shape, start, stop, strict=True):
        positions = (positions[:, None] * extent + torch.arange(first, last, device=device)).view(-1)
    return positions


def _mixed(z: Tensor, key: Key) -> Tensor:
    """The random bits of the elements with indices `z`, which is overwritten."""
    z.add_(1).mul_(_signed(GAMMA)).add_(key if isinstance(key, Tensor) else _signed(key))
    for shift, factor in ((30, FIRST), (27, SECOND), (31, None)):
        high = (z >> shift).bitwise_and_((1 << (64 - shift)) - 1)  # a logical shift: torch's keeps the sign
        z.bitwise_xor_(high)
        if factor is not None:
            z.mul_(_signed(factor))
    return z


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def uniform_numbers(key: Key, shape: Shape, block: Box, device: torch.device) -> Tensor:
    """Numbers in [0, 1) for the elements of a block, by their index in the global `shape`: 53 bits each, as float64."""
    bits = _mixed(_offsets(shape, block.start, block.stop, device), key)
    return ((bits >> 11).bitwise_and_((1 << 53) - 1)).double().mul_(2.0**-53).view(block.shape)


def key_at(key: Key, number: int) -> Key:
    """A 63-bit key for the stream of this number, at a distance from `key` that keeps the numbers of streams apart.

    The i-th number of a stream follows from ``key + i GAMMA``. A stream begins `GAMMA` numbers after the one before it,
    and multiples of the golden ratio stay far from each other: a million streams of up to 2^40 numbers do not overlap.
    """
    step = GAMMA * GAMMA * (2 * number + 1) % 2**63
    return (key + step) & (2**63 - 1)
