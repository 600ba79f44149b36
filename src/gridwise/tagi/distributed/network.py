"""Base of networks on several workers: the interface of a `Sequential`, around one with hooks for communication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import GridwiseError
from ..nn.data_struct import BaseDeltaStates, BaseHiddenStates, Values
from ..nn.gaussian import Gaussian
from ..nn.sequential import Sequential
from .replicas import Replicas


class NetworkOnWorkers:
    """A network whose training is shared with other workers; base of `DDPSequential` and `GridSequential`.

    In training mode all workers make every call together. In evaluation mode `forward` of a `DDPSequential` is local to
    this worker.

    Attributes
    ----------
    model : Sequential
        The network, with the same parameters on all workers. A copy or a pickle of it is an ordinary local network.
    """

    model: Sequential
    _replicas: Replicas

    def __call__(self, mu_x: Values, var_x: Values | None = None) -> Any:
        """The same as `forward`."""
        return self.forward(mu_x, var_x)

    def forward(self, mu_x: Values, var_x: Values | None = None) -> Any:
        raise NotImplementedError

    def step(self) -> None:
        """Update the parameters from the synchronised sums: the same on all workers, without communication."""
        self.model.step()

    def train(self) -> None:
        """Set the model to training mode."""
        self.model.train()

    def eval(self) -> None:
        """Set the model to evaluation mode."""
        self.model.eval()

    def barrier(self) -> None:
        """Wait until all workers have arrived."""
        self._replicas.transport.barrier(self._replicas.team)

    # ---- buffers ----------------------------------------------------------------------------------------------------
    @property
    def output_z_buffer(self) -> BaseHiddenStates:
        """Moments and Jacobians of the last output on this worker."""
        return self.model.output_z_buffer

    @property
    def input_delta_z_buffer(self) -> BaseDeltaStates:
        """Where the updater puts the innovations of this worker's output."""
        return self.model.input_delta_z_buffer

    def get_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the last output on this worker, flat."""
        return self.model.get_outputs()

    def output_to_host(self) -> list[float]:
        """The means of the last output on this worker, as a list on the host."""
        return self.get_outputs()[0].tolist()

    @property
    def device(self) -> str:
        """The device of this worker's network, 'cpu', 'cuda:0', ...: the argument of `OutputUpdater`."""
        return self.model.device

    # ---- parameters -------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The parameters and running statistics, under the same names as for a network on one worker."""
        return self.model.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load the same state on all workers."""
        return self.model.load_state_dict(state_dict, strict)

    # ---- problems on this worker, found before anything is sent -----------------------------------------------------
    def _problem_with_backward(self) -> str | None:
        try:
            self.model._output_innovation()
        except GridwiseError as error:
            return str(error)
        if any(layer._saved is None for layer in self.model.parametric_layers()):
            return "backward() has no forward pass in training mode to go back through"
        return None


def check_input(net: Sequential, x: Gaussian) -> None:
    """Raise unless the network can take `x`: tries one sample on a copy without hooks."""
    zeros = x.mu.new_zeros(1, *x.mu.shape[1:])
    net.for_evaluation().infer(Gaussian(zeros, None if x.var is None else zeros))
