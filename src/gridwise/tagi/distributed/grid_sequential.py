"""A TAGI network on a batch x space grid: each worker holds a block of the images.

    P_x = gridwise.world().grid(1, 1, 2, 2)
    net = gridwise.tagi.on_grid(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), ..., nn.Linear(512, 11)), P_x)
    mu, var = net(x[gridwise.local_slice(P_x, x.shape)])              this worker's block of the images
    mine = gridwise.local_slice(net.P_y, y.shape)                     this worker's block of the output
    updater.update(net.output_z_buffer, y[mine], noise[mine], net.input_delta_z_buffer)
    net.backward()
    net.step()

The result equals that of one worker, up to rounding, for every grid, kernel, stride, padding and size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...comm.agreement import largest
from ...errors import PartitionError
from ...nn.engine.agreement import agree_layout
from ...partition import CartesianPartition, Partition, PartitionLike, as_partition, zero_volume_tensor
from ..inference.finite_values import as_inputs, as_variances
from ..nn.data_struct import Values, describe
from ..nn.gaussian import Gaussian, Innovation
from ..nn.sequential import Sequential, returned
from .carrier import Regrid
from .grid_plan import GridPlan, works_on_blocks
from .network import NetworkOnWorkers
from .replicas import Replicas


class GridSequential(NetworkOnWorkers):
    """A `Sequential` on images that are distributed in blocks over the grid `P_x`; made by `on_grid`.

    Parameters
    ----------
    model : a `Sequential`, built identically on all workers
    P_x : the partition of the images, (batch, channel, height, width)

    Attributes
    ----------
    model : Sequential
        The network, with the same parameters on all workers. It also works alone, on whole images, in evaluation mode.
    P_x : CartesianPartition
        The grid of the input: (batch, 1, height, width).
    P_y : CartesianPartition
        The grid of the output: all workers along the batch if a layer needs whole samples, else `P_x`. Either way the
        blocks are balanced, as given by `gridwise.local_slice(P_y, global_shape)`.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> P_x = gridwise.world().grid(1, 1, 1, 1)
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, in_width=8, in_height=8))
    >>> net = gridwise.tagi.on_grid(model, P_x)
    >>> mu, var = net(torch.ones(2, 1, 8, 8))
    >>> mu.shape
    torch.Size([2, 4, 8, 8])
    """

    def __init__(self, model: Sequential, P_x: Partition) -> None:
        if not isinstance(P_x, CartesianPartition) or P_x.dim != 4 or P_x.shape[1] != 1:
            has = P_x.shape if isinstance(P_x, Partition) else repr(P_x)
            raise PartitionError(
                f"on_grid: `P_x` (={has}) must be a Cartesian partition with the axes (batch, 1, height, width).\n"
                "  fix: grid(1, 1, 2, 2), say; channels are not cut."
            )
        self.model, self.P_x, self.P_y = model, P_x, P_x
        if not all(map(works_on_blocks, model.layers)):
            self.P_y = P_x.grid(P_x.size, 1)
        self._structure: tuple[torch.Size, torch.dtype, bool] | None = None
        self._plan: GridPlan | None = None
        self._has_variance = False
        if P_x.active:
            self._replicas = Replicas(model, P_x.transport, P_x.team, "GridSequential")

    # ---- inference --------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def forward(self, mu_x: Values, var_x: Values | None = None) -> Any:
        """Mean and variance of this worker's block of the output, for its block of the images.

        Parameters
        ----------
        mu_x
            This worker's block of the means, (batch, channel, height, width): a tensor or a NumPy array.
        var_x
            Variances of the same shape; None for inputs known exactly.
        """
        if not self.P_x.active:
            return zero_volume_tensor(), zero_volume_tensor()
        problem, x = None, Gaussian(torch.zeros(0))
        try:
            x = self._input(mu_x, var_x)
        except Exception as error:  # whatever it is, the other workers wait for this one
            problem = describe(error)
        structure = x.mu.shape, x.mu.dtype, x.var is None
        if self._replicas.agree("forward", problem, structure != self._structure):
            self._make_plan(x)
            self._structure = structure
        out = self._run(x._replace(var=x.variance() if self._has_variance else None))
        return returned(out, mu_x)

    def _input(self, mu_x: Values, var_x: Values | None) -> Gaussian:
        like = next(self.model.parameters(), torch.zeros(()))
        x = Gaussian(as_inputs(mu_x, like), None if var_x is None else as_variances(var_x, like, "var_x"))
        if x.mu.ndim != 4:
            raise PartitionError(f"needs a block of shape (batch, channel, height, width), got {tuple(x.mu.shape)}")
        if x.var is not None and x.var.shape != x.mu.shape:
            raise PartitionError(f"got means of shape {tuple(x.mu.shape)} with variances of shape {tuple(x.var.shape)}")
        return x

    def _make_plan(self, x: Gaussian) -> None:
        self._structure = self._plan = None
        transport, team, name = self.P_x.transport, self.P_x.team, "GridSequential.forward"
        self._has_variance = any(largest(transport, team, name, x.var is not None))
        source, _ = agree_layout(transport, team, name, self.P_x.geometry, x.mu)
        self._plan = GridPlan(self.model, transport, team, source)

    def _run(self, x: Gaussian) -> Gaussian:
        with self._on_grid() as plan:
            for layer in plan.steps:
                if isinstance(layer, Regrid):  # not a submodule of the model, so it has to be given its mode
                    layer.training = self.model.training
                x = layer.forward(x)
        self.model.output_z_buffer.gaussian = x
        return x

    @torch.no_grad()
    def backward(self) -> None:
        """Compute the innovations of this worker's units, and those of the parameters summed over the grid."""
        if not self.P_x.active:
            return
        self._replicas.begin(self._problem_with_backward())
        back: Innovation | None = self.model._output_innovation()
        with self._on_grid() as plan:
            self._replicas.batch = plan.source.global_shape[0]
            for position in range(len(plan.steps) - 1, -1, -1):
                assert back is not None
                back = plan.steps[position].backward(back, position > 0 or self.model.input_state_update)
            self._replicas.finish()
            self._replicas.batch = None
        if back is not None and self.model.input_state_update:
            self.model.output_delta_z_buffer.innovation = back

    def step(self) -> None:
        """Update the parameters from the sums over the grid: the same on all workers, without communication."""
        if self.P_x.active:
            self.model.step()

    def barrier(self) -> None:
        """Wait until all workers of the grid have arrived."""
        self.P_x.barrier()

    @contextmanager
    def _on_grid(self) -> Iterator[GridPlan]:
        """Let windows reach into the blocks of other workers inside the context; outside, the network is local."""
        assert self._plan is not None
        try:
            for layer, halo in self._plan.halos.items():
                layer.halo = halo
            yield self._plan
        finally:
            for layer in self._plan.halos:
                layer.halo = None


def on_grid(net: Sequential, P_x: PartitionLike) -> GridSequential:
    """`net` on the grid `P_x`: each worker holds a block of the images, and all train one network.

    Parameters
    ----------
    net
        The network, built identically on all workers; its parameters become those of the grid's first worker.
    P_x
        A Cartesian partition, or the shape of a grid of all workers, with the axes (batch, 1, height, width). Workers
        outside it may make the same calls, with `gridwise.zero_volume_tensor()`, and do nothing.

    Notes
    -----
    Convolutions and pooling fetch the rows that they need from other workers: in forward, means and variances in one
    message per neighbour; in backward, their innovations go back to the owners, which add them up. `BatchNorm2d` takes
    its statistics over the grid. At the first layer that needs whole samples (Linear, LayerNorm, Softmax) the batch is
    spread over all workers, and so is the output then (`P_y`). The parameters' raw sums are added over the grid, before
    they are multiplied by variances, in a few large messages.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = gridwise.tagi.on_grid(nn.Sequential(nn.Conv2d(1, 2, 3)), (1, 1, 1, 1))
    >>> net(torch.ones(4, 1, 8, 8))[0].shape
    torch.Size([4, 2, 6, 6])
    """
    return GridSequential(net, as_partition(P_x, "on_grid"))
