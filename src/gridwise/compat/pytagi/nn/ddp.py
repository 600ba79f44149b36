"""pytagi's data-parallel networks: Gridwise's own, around one of pytagi's."""

from __future__ import annotations

from typing import Any

from gridwise.tagi.nn import ddp as own
from gridwise.tagi.nn import sequential
from gridwise.tagi.nn.data_struct import as_tensor
from gridwise.tagi.nn.ddp import DDPConfig as DDPConfig

from .sequential import Sequential


class DDPSequential(own.DDPSequential):
    """A network trained on all workers, each with its own samples. It and `model` have the same layers and buffers."""

    def __init__(self, model: Sequential, config: DDPConfig, average: bool = True) -> None:
        twin = sequential.Sequential(*model.layers, compat="cutagi")
        twin._output, twin._input_delta, twin._output_delta = model._output, model._input_delta, model._output_delta
        super().__init__(twin, config, average)
        self.__dict__["_given"] = model

    def forward(self, mu_x: Any, var_x: Any = None) -> Any:
        """Flat means and variances of this worker's outputs."""
        shape = self.__dict__["_given"]._shape_of_sample
        flat = as_tensor(mu_x).reshape(-1)
        rows = flat.reshape(-1, *shape(flat.numel()))
        out = super().forward(rows.numpy(), None if var_x is None else as_tensor(var_x).numpy())
        return tuple(out)

    __call__ = forward
