"""DistDL's choice of a backend. There is only one; Gridwise itself finds the transport to the other processes."""

from .backends import mpi as backend

__all__ = ["backend"]
