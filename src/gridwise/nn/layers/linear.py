"""Affine maps on a grid: y = x W' + b with the features of x, of y, or of both cut.

    only P_x            x is gathered along its last axis; each worker computes its block of the output features;
                        W is cut along the outputs and replicated over the leading axes

    P_x, P_y, P_w       each worker of P_w = (p_out, p_in) holds one block of W: x goes to the workers that need it,
                        partial results go to P_y and are added there

Gathering, fetching and adding are movements (`carrier`), and backward applies their adjoints.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError
from ...grid import Grid, Interval, Layout, Needs, balanced_cuts, route
from ...partition import Partition, zero_volume_tensor
from ..engine.agreement import agree_layout
from ..engine.arguments import need_partition, problem_with_tensor, refuse_partitions
from ..engine.autocast import dtype_of_products
from ..engine.carrier import Move, MoveBack
from ..engine.layer import Layer
from ..parameters.blocks import Sharding
from ..primitives.all_gather import gathering


class DistributedLinear(Layer):
    """`torch.nn.Linear` of tensors ``(*, in_features)`` on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input; any axis may be longer than 1
    in_features, out_features, bias, device, dtype : as in torch, for the global tensors
    P_y, P_w : both or neither. `P_y` is the partition of the output, with as many axes as `P_x`; `P_w`, of shape
        ``(p_out, p_in)``, is the partition of the weight

    Shape
    -----
    - input: ``(*, in_features)``; this worker's block of it
    - output: ``(*, out_features)``; a block of it

    Notes
    -----
    With `P_x` alone: forward gathers ``(p - 1) / p`` of the input's rows, p being the extent of the last axis; the
    output's features are cut along that axis, and its other dims keep the input's blocks. With `P_w`: forward sends
    each block of x to `p_out` workers and sums `p_in` partial results; the output is balanced on `P_y`, and a worker
    outside it gets a zero-volume tensor of shape ``(batch, 0)``. Adjoint: the same messages in the opposite direction.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.DistributedLinear(P_x, 3, 2)(torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """

    weight: Tensor
    bias: Tensor | None
    _fixed = (*Layer._fixed, "in_features", "out_features")
    _required = ("weight",)

    def __init__(
        self,
        P_x: Partition,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
    ) -> None:
        super().__init__()
        need_partition(type(self).__name__, "P_x", P_x)
        given = {"in_features": in_features, "out_features": out_features, "bias": bias, "device": device}
        refuse_partitions(type(self).__name__, given, "P_x, in_features, out_features")
        problem = _problem_with_grids(P_x, P_y, P_w)
        self.in_features, self.out_features = in_features, out_features
        self.P_x, self.P_y, self.P_w = P_x, P_y or P_x, P_w
        partitions = [P for P in (P_x, P_y, P_w) if P is not None]
        self._takes_part(*partitions, signature=f"{in_features}, {out_features}, bias={bias}")

        def make(device: torch.device | str | None) -> torch.nn.Module:
            return torch.nn.Linear(in_features, out_features, bias, device, dtype)

        def shardings(layer: torch.nn.Module) -> dict[str, Sharding]:
            if P_w is None:
                last = P_x.dim - 1
                of_weight = Sharding(P_x.geometry, (last, None), (out_features, in_features))
                return {"weight": of_weight, "bias": Sharding(P_x.geometry, (last,), (out_features,))}
            first = Grid(P_w.ranks[:: P_w.shape[1]], (P_w.shape[0],))
            of_weight = Sharding(P_w.geometry, (0, 1), (out_features, in_features))
            return {"weight": of_weight, "bias": Sharding(first, (0,), (out_features,))}

        self._build(make, shardings, device, problem)

    def _problem_with(self, input: tuple) -> str | None:
        return problem_with_tensor(input, dense=self.P_w is not None or self.P_x.shape[-1] > 1)  # where it is sent

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        transport, title = self.P_x.transport, self._title
        layout, agreed = agree_layout(transport, self._team, title, self.P_x.geometry, input[0])
        shape = layout.global_shape
        if shape[-1] != self.in_features:
            raise PartitionError(
                f"{title} needs {self.in_features} features in the last dim of the global input, got {shape[-1]}."
            )
        self._agreed = agreed
        x = torch.empty(0, dtype=agreed.dtype, device=agreed.device)
        self._try_dtypes(
            lambda one: F.linear(one(x, 1, 1), one(self._block("weight"), 1, 1), one(self._block("bias"), 1))
        )
        self._fetch: Move | None = None
        self._collect: MoveBack | None = None
        if self.P_w is None:
            if layout.grid.shape[-1] > 1:
                plan = gathering(layout, (layout.grid.dim - 1,), transport.rank)
                self._fetch = Move(transport, self._team, title, plan, torch.clone)
            return
        batch = input[0].shape[0] if self.P_x.active else shape[0]

        def nothing(x: Tensor) -> Tensor:
            return zero_volume_tensor(batch, dtype=x.dtype, device=x.device)

        p_out, p_in = self.P_w.shape
        needs = _needs(self.P_w.ranks, p_out, shape[:-1], self.in_features, p_in)
        self._fetch = Move(transport, self._team, title, route(layout, needs, transport.rank), nothing)
        turned = tuple(self.P_w.ranks[i * p_in + j] for j in range(p_in) for i in range(p_out))
        partial = _needs(turned, p_in, shape[:-1], self.out_features, p_out)
        target = Layout.balanced(self.P_y.geometry, (*shape[:-1], self.out_features))
        back = Move(transport, self._team, f"the adjoint of {title}", route(target, partial, transport.rank), nothing)
        self._collect = back.adjoint
        self._collect.name = title

    def forward(self, input: Tensor) -> Tensor:
        if self._is_outside:
            return input.clone()
        x = self._agreed.convert(input)
        if self._fetch is not None:
            x = self._move(x, self._fetch, self._agreed.requires_grad)
        if self.P_w is None or self.P_w.active:
            adds = self.bias is not None and self._shardings["bias"].block(self.P_x.transport.rank) is not None
            bias = self._parameter("bias") if adds else None
            x = F.linear(x, self._parameter("weight"), bias)
        else:
            x = x.to(dtype_of_products(x))
        if self._collect is not None:
            x = self._move(x, self._collect, self._wants_gradients or self._agreed.requires_grad, step=1)
        return x

    def _by_torch(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def _problem_with_grids(P_x: Partition, P_y: Partition | None, P_w: Partition | None) -> str | None:
    if (P_y is None) != (P_w is None):
        return "needs both `P_y` and `P_w`, or none of them"
    if P_y is None or P_w is None:
        return None
    if P_y.dim != P_x.dim or P_x.dim < 2:
        return f"needs `P_x` and `P_y` with the same number of axes, at least 2, got {P_x.shape} and {P_y.shape}"
    if P_w.dim != 2:
        return f"needs `P_w` of shape (p_out, p_in), got {P_w.shape}"
    return None


def _needs(ranks: tuple[int, ...], copies: int, lead: tuple[int, ...], features: int, blocks: int) -> Needs:
    """Needs of all leading dims and one block of the features on every worker; each block goes to `copies` workers."""
    cuts = balanced_cuts(features, blocks)
    by_block = tuple((cuts[i], cuts[i + 1]) for i in range(blocks))
    whole: list[tuple[Interval, ...]] = [((0, n),) for n in lead]
    whole[0] = whole[0] * copies
    grid = Grid(ranks, (copies, *(1,) * (len(lead) - 1), blocks))
    return Needs(grid, (*whole, by_block), (False,) * grid.dim)
