"""DistDL's choice of a backend, of which there is one; what talks to other processes here is found by Gridwise."""

from .backends import mpi as backend

__all__ = ["backend"]
