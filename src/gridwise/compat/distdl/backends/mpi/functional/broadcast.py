"""Copies from the first worker of a team to all of it."""

from .carried import TeamFunction


class BroadcastFunction(TeamFunction):
    """Called by `apply`, like a function of autograd; the partitions are those of `create_broadcast_partition_to`."""
