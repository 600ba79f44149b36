"""`Broadcast`: Gridwise's."""

from gridwise.nn.primitives.broadcast import Broadcast as GridwiseBroadcast

from .grid_copies import PlainGridCopy


class Broadcast(PlainGridCopy, GridwiseBroadcast):
    """From `P_x` to `P_y`, by the rule of broadcasting; see `gridwise.nn.Broadcast`."""
