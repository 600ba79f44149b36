"""`DistributedConv{1,2,3}d`: a layer of the family that its partitions ask for."""

from __future__ import annotations

from typing import Any

from . import conv_channel, conv_feature, conv_general
from .conv_families import family


def _of(dims: int) -> Any:
    rooms = {"Feature": conv_feature, "Channel": conv_channel, "General": conv_general}
    made = family(*(getattr(room, f"Distributed{name}Conv{dims}d") for name, room in rooms.items()))
    made.__name__ = made.__qualname__ = f"DistributedConv{dims}d"
    made.__module__ = __name__
    return made


DistributedConv1d = _of(1)
DistributedConv2d = _of(2)
DistributedConv3d = _of(3)
