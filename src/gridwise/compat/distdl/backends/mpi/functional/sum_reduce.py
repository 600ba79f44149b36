"""Sums over a team, at the first worker of it."""

from .carried import TeamFunction


class SumReduceFunction(TeamFunction):
    """Called by `apply`, like a function of autograd; the partitions are those of `create_reduction_partition_to`."""

    sums = True
