"""The base class of all distributed layers here: Gridwise's own, with DistDL's attributes."""

from __future__ import annotations

from typing import Any, ClassVar

from gridwise.nn.engine.module import Module as GridwiseModule

from ..backends import mpi
from ..backends.mpi.buffer import MPIBufferManager, hold_buffers


class Module(GridwiseModule):
    """A layer that is set up at its first call, and again when its input changes."""

    _distdl_backend: ClassVar[Any] = mpi


class WindowedModule(Module):
    """A layer that fetches halos, for which DistDL uses four buffers."""

    buffer_manager: MPIBufferManager | None = None

    _keeps_plans = True

    def _distdl_module_setup(self, input: tuple) -> None:
        super()._distdl_module_setup(input)
        hold_buffers(self.buffer_manager, 4, input[0].dtype)
