"""PReLU on a grid: max(0, x) + a min(0, x), with a single a, or one for each channel, cut like the channels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...grid import Layout
from ...partition import Partition
from ..engine.agreement import agree_layout
from ..engine.arguments import problem_with_tensor
from ..engine.layer import Layer
from ..parameters.blocks import Sharding
from .norm_base import check_cut_like_parameters


class DistributedPReLU(Layer):
    """`torch.nn.PReLU` of tensors ``(batch, channel, ...)`` on `P_x`.

    Parameters
    ----------
    P_x : the partition of input and output; every axis may be longer than 1
    num_parameters, init, device, dtype : as in torch, for the global tensor

    Shape
    -----
    - input, output: ``(batch, num_parameters, *)``, or any shape for a single parameter; this worker's block of it

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.DistributedPReLU(P_x, init=0.5)(torch.tensor([[-2.0, 2.0]])).detach()
    tensor([[-1.,  2.]])
    """

    weight: Tensor
    _fixed = (*Layer._fixed, "num_parameters")
    _required = ("weight",)

    def __init__(
        self,
        P_x: Partition,
        num_parameters: int = 1,
        init: float = 0.25,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.P_x, self.num_parameters, self.init = P_x, num_parameters, init
        self._takes_part(P_x, signature=f"{num_parameters}, {init}")
        along = 1 if num_parameters > 1 and P_x.dim > 1 else None

        def make(device: torch.device | str | None) -> torch.nn.Module:
            return torch.nn.PReLU(num_parameters, init, device, dtype)

        def shardings(layer: torch.nn.Module) -> dict[str, Sharding]:
            return {"weight": Sharding(P_x.geometry, (along,), (num_parameters,))}

        few = num_parameters > 1 and P_x.dim < 2
        self._build(make, shardings, device, f"needs a partition of at least 2 axes, got {P_x.shape}" if few else None)

    def _problem_with(self, input: tuple) -> str | None:
        return problem_with_tensor(input)

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        layout: Layout = agree_layout(self.P_x.transport, self._team, self._title, self.P_x.geometry, input[0])[0]
        self._try_dtypes(lambda one: F.prelu(one(input[0], 1, 1), one(self._block("weight"), 1)))
        if self.num_parameters > 1:
            check_cut_like_parameters(self._title, layout, 1, self.num_parameters)

    def forward(self, input: Tensor) -> Tensor:
        if self._is_outside:
            return input.clone()
        weight = self._parameter("weight")
        if not input.numel():  # stays connected to the parameter: others wait for its part in the sum
            return input * weight.sum()
        return F.prelu(input, weight)

    def _by_torch(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
