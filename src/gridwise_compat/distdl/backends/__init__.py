"""DistDL's backends: only `mpi`, which here runs on every transport of Gridwise."""

from . import mpi as mpi
