"""`SumReduce`: Gridwise's."""

from gridwise.nn.primitives.sum_reduce import SumReduce as GridwiseSumReduce

from .grid_copies import PlainGridCopy


class SumReduce(PlainGridCopy, GridwiseSumReduce):
    """From `P_x` to `P_y`, by the rule of broadcasting; see `gridwise.nn.SumReduce`."""
