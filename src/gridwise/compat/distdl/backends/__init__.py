"""DistDL's backends: one, whose name is that of the first transport; it runs on every transport of Gridwise."""

from . import mpi as mpi
