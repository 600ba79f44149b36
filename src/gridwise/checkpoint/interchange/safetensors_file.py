"""Write a safetensors file tensor by tensor, and put it into place when it is complete."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from ...errors import CheckpointMismatch
from .. import disk
from ..format.chunks import chunks_of
from ..format.data_file import Block, header_of
from ..format.manifest import ITEMSIZE
from ..format.safetensors_headers import EXTRA
from ..reading.reader import Progress
from .portable import Portable, PortableTensor


def write_safetensors(target: Path, portable: Portable, progress: Progress | None) -> None:
    """Write everything to one file; plain values go into its metadata."""
    extra = {
        "values": portable.values,
        "per_worker": portable.per_worker,
        "workers": portable.workers,
        "complex": [key for key, x in portable.tensors.items() if x.code == "C128"],
    }
    write_tensors(target, portable.tensors, {"format": "pt", EXTRA: json.dumps(extra)}, progress)


def write_tensors(
    target: Path, tensors: dict[str, PortableTensor], metadata: dict[str, str], progress: Progress | None
) -> None:
    """Write these tensors under their names, larger element sizes first."""
    single = [name for name, x in tensors.items() if x.code == "F4" and not x.shape]
    if single:
        raise CheckpointMismatch(f"{single[0]!r} is a float4 tensor without dims, for which safetensors has no shape.")
    items = sorted(tensors.items(), key=lambda item: -ITEMSIZE[item[1].code])
    nothing = torch.empty(0, device="cpu")
    blocks = [Block(name, x.code, None, x.shape, nothing, 0, x.nbytes) for name, x in items]
    draft = target.with_name(target.name + ".tmp")
    disk.remove(draft)
    fd = disk.create(draft)
    try:
        disk.write(fd, [memoryview(header_of(blocks, metadata, pack_from=None))])
        for _, x in items:
            for chunk in chunks_of(x.make()):
                disk.write(fd, [chunk])
                if progress is not None:
                    progress(len(chunk))
        disk.sync(fd)
    except BaseException:
        disk.remove(draft)
        raise
    finally:
        os.close(fd)
    disk.rename(draft, target)
    disk.sync_folder(target.parent)
