"""What a user allows: memory for the tiles, or their size; and where arrays between stages lie."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import PartitionError
from ..grid import Shape
from ..memory_sizes import free, number_of_bytes
from .graph import OperatorGraph
from .schedule import Schedule, scheduled

SHARE = 0.9
"""Of what is free, how much is used if the user does not say."""


@dataclass(frozen=True)
class Limits:
    """Memory, or the size of tiles.

    Parameters
    ----------
    memory : bytes of the working set on the device; None: what is free at the first call, less a tenth
    tile : the most rows along the last dims, in place of `memory`
    store : a folder for arrays between stages; None: memory if they fit there too, else the folder for temporary files
    in_memory : whether they are kept in memory, fit or not
    device : where tiles are computed; None: where the parameters are
    """

    memory: int | None = None
    tile: Shape | None = None
    store: Path | None = None
    device: torch.device | None = None
    in_memory: bool = False

    @classmethod
    def of(
        cls, memory: str | int | None, tile: int | Sequence[int] | None, store: str | Path | None, device: object
    ) -> Limits:
        if memory is not None and tile is not None:
            raise PartitionError("tiled: give `memory` or `tile`, not both: each decides how large tiles are.")
        sizes = tuple(tile) if isinstance(tile, Sequence) else (tile,)
        if tile is not None and (not sizes or any(type(n) is not int or n < 1 for n in sizes)):
            raise PartitionError(f"tiled: `tile` (={tile!r}) must be sizes of at least 1, as in (256, 256).")
        in_memory = store == "memory"
        folder = None if store is None or in_memory else Path(store)
        if folder is not None:
            _refuse_folder(folder)
        limit = None if memory is None else number_of_bytes(memory, "tiled")
        rows = None if tile is None else tuple(n for n in sizes if n is not None)
        return cls(limit, rows, folder, _device(device), in_memory)

    def scheduled(self, graph: OperatorGraph, backward: bool, device: torch.device) -> tuple[Schedule, Path | None]:
        """The schedule within these limits, and the folder of its arrays; None for memory."""
        if self.tile is not None:
            return scheduled(graph, None, backward, self.tile), self.store
        memory = self.memory if self.memory is not None else int(SHARE * free(device))
        on_disk = self.store or Path(tempfile.gettempdir())
        if device.type != "cpu" or self.store is not None or self.in_memory:
            return scheduled(graph, memory, backward), self.store
        schedule = scheduled(graph, memory, backward)
        stored = schedule.stored_peak
        if stored == 0:
            return schedule, None
        if stored <= memory // 2:
            return scheduled(graph, memory - stored, backward), None
        return schedule, on_disk


def _refuse_folder(folder: Path) -> None:
    """Raise unless files can be made in it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        reason = f"cannot be written to ({error.strerror})" if folder.is_dir() else "is no folder"
    raise PartitionError(f"tiled: `store` (={str(folder)!r}) {reason}.\n  fix: make it, or name another.")


def _device(given: object) -> torch.device | None:
    """What computes, if that is said and is there."""
    if given is None:
        return None
    try:
        device = torch.device(given)  # type: ignore[call-overload]
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("tiles are computed on a CPU or a CUDA device")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise RuntimeError(f"torch finds {torch.cuda.device_count()} CUDA devices here")
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise PartitionError(f"tiled: `device` (={str(given)!r}) cannot be used: {reason}.") from None
    assert isinstance(device, torch.device)
    return device
