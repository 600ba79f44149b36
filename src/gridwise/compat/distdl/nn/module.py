"""The base class of all distributed layers here: Gridwise's own, with DistDL's attributes."""

from __future__ import annotations

from typing import Any, ClassVar

from gridwise.nn.engine.module import Module as GridwiseModule

from ..backends import mpi


class Module(GridwiseModule):
    """A layer that is set up at its first call, and again when its input changes."""

    _distdl_backend: ClassVar[Any] = mpi
