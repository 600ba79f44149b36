"""How much memory a tile takes: what it holds at its worst moment, with the copies that torch's kernels make."""

from __future__ import annotations

from collections.abc import Mapping

from ..grid import Box
from .cone import Stage
from .graph import GlobalValue
from .workspace import bytes_of, workspace


def footprint(stage: Stage, box: Box | None, backward: bool) -> int:
    """The bytes that a tile of a stage holds, besides stored arrays; with what backward keeps, if it is one of backward."""
    if stage.whole is not None:
        held = sum(value.nbytes for value in (*stage.whole.inputs, *stage.roots) if not value.is_fixed)
        return held * (2 if backward else 1)
    assert box is not None
    hulls = stage.hulls(box)
    sizes = {value: bytes_of(value, hulls[value]) for value in hulls}
    held = _kept(stage, sizes, hulls) if backward else _passing(stage, sizes, hulls)
    return held + _travelling(stage, sizes, backward)


def _travelling(stage: Stage, sizes: Mapping[GlobalValue, int], backward: bool) -> int:
    """What a device holds of other tiles: what the next one reads, and what the last one has made, on its way to the host."""
    if not _is_on_device(stage):
        return 0
    read = sum(sizes[value] for value in stage.reads if not value.is_fixed)
    made = sum(sizes[root] for root in stage.roots)
    if not backward:
        return read + made
    return 2 * read + made * (2 if stage.collects else 1)  # gradients of what is read are added to what is there


def _is_on_device(stage: Stage) -> bool:
    return any(value.spec.device.type == "cuda" for value in (*stage.reads, *stage.roots))


def _collected(stage: Stage, sizes: Mapping[GlobalValue, int]) -> int:
    """The bytes of a tile's values of which something is collected."""
    return sum(sizes.get(value, 0) for value in dict.fromkeys(v for each in stage.collects for v in each.inputs))


def _passing(stage: Stage, sizes: Mapping[GlobalValue, int], hulls: Mapping[GlobalValue, Box]) -> int:
    """The most that is held at a time, if everything is freed after its last use."""
    ends = {*stage.roots, *(v for each in stage.collects for v in each.inputs)}
    later: set[GlobalValue] = set(ends)
    frees: list[list[GlobalValue]] = []
    for operation in reversed(stage.operations):
        used = {*operation.inputs, *operation.outputs}
        frees.append([value for value in used if value not in later])
        later |= used
    held = sum(sizes[value] for value in stage.reads if not value.is_fixed)
    most = held
    for operation, freed in zip(stage.operations, reversed(frees), strict=True):
        made = sum(sizes.get(value, 0) for value in operation.outputs)
        most = max(most, held + made + workspace(operation, hulls))
        held += made - sum(sizes.get(value, 0) for value in freed if not value.is_fixed)
    copies = 2 if _is_on_device(stage) else 1  # where a convolution leaves its result with channels last
    return max(most, held + copies * _collected(stage, sizes))


def _kept(stage: Stage, sizes: Mapping[GlobalValue, int], hulls: Mapping[GlobalValue, Box]) -> int:
    """The same with all results kept, the cotangent of the root, and the gradients on the way back."""
    held = sum(sizes[value] for value in stage.reads if not value.is_fixed)
    made = sum(sizes.get(value, 0) for each in stage.operations for value in each.outputs)
    most = 4 * _collected(stage, sizes)  # two cotangents, what is subtracted from the values, and their sum
    for operation in stage.operations:
        back = sum(sizes.get(v, 0) for v in (*operation.inputs, *operation.outputs) if not v.is_fixed)
        most = max(most, back + workspace(operation, hulls, backward=True))
    return held + made + most
