"""The network: layers in sequence, trained by closed-form inference.

    mu, var = net(x)                                            prior of the output
    updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
    net.backward()                                              innovations of all units, sums of all parameters
    net.step()                                                  posterior of the parameters

There is no loss, no gradient and no learning rate. For tensors the outputs are tensors, on the network's device, in the
shape that the last layer gives them; for NumPy arrays they are flat float arrays, as in pytagi.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, GridwiseError
from .. import parameter_files
from ..inference.finite_values import as_inputs, as_variances
from .base_layer import BaseLayer, ParametricLayer
from .batch_norm import BatchNorm2d
from .data_struct import BaseDeltaStates, BaseHiddenStates, Values, as_tensor
from .gaussian import Gaussian, Innovation
from .layer_block import LayerBlock
from .linear import SLinear
from .lstm import LSTM, LSTMStates
from .slstm import SLSTM

if TYPE_CHECKING:
    from ..distributed.replicas import Replicas

Array = np.ndarray | Tensor


class Sequential(LayerBlock):
    """Layers in sequence, with pytagi's interface on top of `torch.nn.Module`'s.

    Parameters
    ----------
    *layers
        The layers, in forward order.
    compat
        'cutagi' reproduces the original's deterministic quirks, which each layer documents.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (2,)
    """

    def __init__(self, *layers: BaseLayer, compat: str | None = None) -> None:
        if not layers:
            raise ArgumentError("Sequential: no layers were given.")
        super().__init__(*layers)
        self.input_state_update = False
        self.replicas: Replicas | None = None  # the workers that train the network together, if several
        self.num_samples = 0
        self.output_z_buffer = BaseHiddenStates()
        """Moments and Jacobians of the last output."""
        self._input_delta = BaseDeltaStates()
        self.output_delta_z_buffer = BaseDeltaStates()
        """Innovations of the network's input after backward, if `input_state_update`."""
        self._smoothed: Gaussian | None = None
        self.set_compat(compat)

    # ---- switches ---------------------------------------------------------------------------------------------------
    def set_compat(self, compat: str | None) -> None:
        """Choose the original's quirks ('cutagi') or the corrected mathematics (None) for every layer."""
        if compat not in (None, "cutagi"):
            raise ArgumentError(f"Sequential: `compat` (={compat!r}) is None or 'cutagi'.")
        for layer in self._all_layers():
            layer.compat = compat

    def set_cap(self, cap: float | str | None) -> None:
        """Set the cap on parameter updates: 'batch' (by the batch size), a factor above zero, or None for no cap."""
        if cap not in (None, "batch") and not (isinstance(cap, int | float) and cap > 0):
            raise ArgumentError(f"Sequential: `cap` (={cap!r}) is 'batch', a number above zero, or None.")
        for layer in self.parametric_layers():
            layer.cap = cap

    def _all_layers(self) -> Iterator[BaseLayer]:
        return (m for m in self.modules() if isinstance(m, BaseLayer))

    def parametric_layers(self) -> list[ParametricLayer]:
        """All layers with parameters, nested ones included, in forward order."""
        return [layer for layer in self.leaves() if isinstance(layer, ParametricLayer)]

    def for_evaluation(self) -> Sequential:
        """A copy in evaluation mode that shares all tensors with the network, but has no hooks to other workers.

        Several threads may therefore predict at once, and predictions do not affect the network.
        """
        shared = {id(t): t for t in (*self.parameters(), *self.buffers())}
        return copy.deepcopy(self, shared).eval()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"replicas": None}

    # ---- inference --------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def forward(self, mu_x: Values | Gaussian, var_x: Values | None = None) -> Any:
        """Mean and variance of the output for a batch of inputs.

        Parameters
        ----------
        mu_x
            Means: a tensor (batch, ...), or a NumPy array of that shape or flat.
        var_x
            Variances of the same shape; None for inputs known exactly.
        """
        if isinstance(mu_x, Gaussian):
            return super().forward(mu_x)
        return returned(self.infer(self._input(mu_x, var_x)), mu_x)

    def infer(self, x: Gaussian) -> Gaussian:
        """The moments of the output, also kept for the updater; `x` must be on the network's device."""
        out = super().forward(x)
        self.output_z_buffer.gaussian = out
        return out

    def _input(self, mu_x: Values, var_x: Values | None) -> Gaussian:
        weights = (leaf.mu_w for leaf in self.leaves() if isinstance(leaf, ParametricLayer))
        like = next(weights, None)
        mu = self.layers[0].as_input(as_inputs(mu_x, like))
        if var_x is None:
            return Gaussian(mu)
        var = as_variances(var_x, like, "var_x")
        if var.numel() != mu.numel() or (var.ndim > 1 and var.shape[0] != mu.shape[0]):
            raise ArgumentError(
                f"Sequential: {mu.numel()} means of {mu.shape[0]} samples came in with variances of shape {tuple(var.shape)}."
            )
        return Gaussian(mu, var.reshape(mu.shape))

    @torch.no_grad()
    def backward(self, delta: Innovation | None = None, need_input: bool | None = None) -> Innovation | None:
        """Compute innovations of all layers and sums of all parameters from `input_delta_z_buffer`, or from `delta`."""
        if delta is None:
            delta = self._output_innovation()
        back = super().backward(delta, self.input_state_update if need_input is None else need_input)
        if self.replicas is not None:
            self.replicas.finish()
        if back is not None and self.input_state_update:
            self.output_delta_z_buffer.innovation = back
        return back

    def _output_innovation(self) -> Innovation:
        if self._input_delta.problem is not None:
            raise ArgumentError(self._input_delta.problem)
        delta, shape = self._input_delta.innovation, self.output_z_buffer.gaussian.mu.shape
        if delta.mu.numel() != shape.numel():
            raise GridwiseError(
                f"backward: the innovations have {delta.mu.numel()} values, the last output has shape {tuple(shape)}.\n"
                "  fix: call OutputUpdater.update after each forward."
            )
        return delta.reshape(*shape)

    @torch.no_grad()
    def smoother(self) -> tuple[np.ndarray, np.ndarray]:
        """Smooth the states of all SLSTM layers over the steps since the last reset; returns outputs by time step."""
        hidden: list[Gaussian] = []
        leaves = list(self.leaves())
        last = max((i for i, layer in enumerate(leaves) if isinstance(layer, SLSTM)), default=len(leaves))
        for layer in leaves[last + 1 :]:
            if not isinstance(layer, SLinear):
                raise GridwiseError(
                    f"smoother: {layer.get_layer_info()} stands after the last SLSTM, and smoothed states cannot go through "
                    "it.\n  fix: SLinear layers only."
                )
        for layer in leaves:
            if isinstance(layer, SLSTM):
                hidden = layer.smoother()
            elif isinstance(layer, SLinear) and hidden:
                hidden = [layer.smoothed(h) for h in hidden]
        if not hidden:
            raise GridwiseError("smoother: there is no SLSTM layer with steps to smooth.")
        var = torch.stack([h.variance() for h in hidden])
        self._smoothed = Gaussian(torch.stack([h.mu for h in hidden]), var)
        return self.get_outputs_smoother()

    # ---- buffers ----------------------------------------------------------------------------------------------------
    @property
    def input_delta_z_buffer(self) -> BaseDeltaStates:
        """Where the updater puts the innovations of the output."""
        return self._input_delta

    @input_delta_z_buffer.setter
    def input_delta_z_buffer(self, value: BaseDeltaStates) -> None:
        value.shared = self._input_delta.shared
        self._input_delta = value

    def set_delta_z(self, delta_mu: Values, delta_var: Values) -> None:
        """Set the innovations of the output by hand."""
        like = self.output_z_buffer.gaussian.mu

        def given() -> Innovation:
            mu, var = as_inputs(delta_mu, like, "delta_mu"), as_inputs(delta_var, like, "delta_var")
            return Innovation(mu.reshape(like.shape), var.reshape(like.shape))

        self._input_delta.set_from(given)

    def get_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the last output, flat."""
        return _flat(self.output_z_buffer.gaussian)

    def get_outputs_smoother(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the last smoothed output, flat, by time step."""
        if self._smoothed is None:
            raise GridwiseError("get_outputs_smoother: smoother() has not been called.")
        return _flat(self._smoothed)

    def get_input_states(self) -> tuple[np.ndarray, np.ndarray]:
        """Innovations of the network's input, flat; needs `input_state_update = True` before backward."""
        return _flat(Gaussian(*self.output_delta_z_buffer.innovation))

    # ---- recurrent states -------------------------------------------------------------------------------------------
    def _recurrent(self) -> dict[int | str, LSTM]:
        """All LSTM layers by position: 3, or '3.1' for layer 1 inside a block (see parameter_files.py)."""
        places = ((name.partition(".")[2], layer) for name, layer in parameter_files.named_layers(self.layers))
        return {int(at) if at.isdigit() else at: layer for at, layer in places if isinstance(layer, LSTM)}

    def reset_lstm_states(self) -> None:
        """Let every LSTM and SLSTM layer start its next sequence from zero."""
        for layer in self.leaves():
            if isinstance(layer, LSTM):
                layer.reset_states()

    def get_lstm_states(self, time_step: int = -1) -> dict[int | str, tuple[np.ndarray, ...]]:
        """The current states {position: (mu_h, var_h, mu_c, var_c)}, or the smoothed ones at `time_step`.

        The position of layer 1 inside the block at position 3 is '3.1'.
        """
        return {
            i: tuple(_array(t.reshape(-1)) for t in layer.get_states(time_step))
            for i, layer in self._recurrent().items()
        }

    def set_lstm_states(self, states: Mapping[Any, Any]) -> None:
        """Continue from states as returned by `get_lstm_states`."""
        layers = self._recurrent()
        if not states.keys() <= layers.keys():
            have, given = (", ".join(map(str, places)) for places in (layers, states))
            raise ArgumentError(f"set_lstm_states: layers {have} have states, not {given}.")
        for i, values in states.items():
            sizes, units = [as_tensor(v).numel() for v in values], layers[i].output_size
            if len(sizes) != 4 or len(set(sizes)) > 1 or sizes[0] % units:
                raise ArgumentError(
                    f"set_lstm_states: {sizes} values came in for layer {i}, {layers[i].get_layer_info()}.\n"
                    f"  fix: (mu_h, var_h, mu_c, var_c), each with {units} values for every sample."
                )
        for i, values in states.items():
            rows = [as_tensor(v, layers[i].mu_w).reshape(-1, layers[i].output_size) for v in values]
            layers[i].states = LSTMStates(*rows)

    # ---- parameters in and out --------------------------------------------------------------------------------------
    def pytagi_state_dict(self) -> dict[str, tuple[list[float], ...]]:
        """The parameters {'Linear.0': (mu_w, var_w, mu_b, var_b)} as flat lists, like pytagi's `state_dict()`."""
        return parameter_files.to_pytagi(self.layers)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state in torch's form (`Linear.0.mu_w`: tensor) or pytagi's (`Linear.0`: four lists)."""
        if parameter_files.is_pytagi(state_dict):
            return parameter_files.from_pytagi(self.layers, state_dict)
        return super().load_state_dict(state_dict, strict, assign)

    def params_from(self, other: Sequential) -> None:
        """Copy all parameters and running statistics of `other`."""
        self.load_state_dict(other.state_dict())

    def save(self, filename: str) -> None:
        """Write pytagi's binary file."""
        parameter_files.save_binary(self.layers, filename)

    def load(self, filename: str) -> None:
        """Read pytagi's binary file."""
        parameter_files.load_binary(self.layers, filename)

    def save_csv(self, filename: str) -> None:
        """Write `<filename>_1_mw.csv`, `_2_Sw.csv`, `_3_mb.csv` and `_4_Sb.csv`."""
        parameter_files.save_csv(self.layers, filename)

    def load_csv(self, filename: str) -> None:
        """Read what `save_csv` wrote."""
        parameter_files.load_csv(self.layers, filename)

    # ---- description ------------------------------------------------------------------------------------------------
    def get_layer_stack_info(self) -> str:
        """One line for each layer."""
        return "".join(layer.get_layer_info() + "\n" for layer in self.layers)

    def get_neg_var_w_counter(self) -> dict[str, int]:
        """How often a step would have made a weight's variance zero or negative, by layer."""
        return {
            f"{layer.get_layer_info()}_{i}": sum(
                int(leaf.neg_var_w) for leaf in layer.leaves() if isinstance(leaf, ParametricLayer)
            )
            for i, layer in enumerate(self.layers)
        }

    def get_norm_mean_var(self) -> dict[str, tuple[list[np.ndarray], ...]]:
        """{layer: (running means, running variances, batch means, batch variances)} for layers with a BatchNorm2d."""
        out = {}
        for i, layer in enumerate(self.layers):
            norms = [leaf for leaf in layer.leaves() if isinstance(leaf, BatchNorm2d)]
            if norms:
                now = [n.batch_statistics or (n.running_mean, n.running_var) for n in norms]
                columns = [n.running_mean for n in norms], [n.running_var for n in norms], *zip(*now, strict=True)
                out[f"{layer.get_layer_info()}_{i}"] = tuple([_array(t) for t in column] for column in columns)
        return out


def returned(out: Gaussian, mu_x: Values) -> tuple[Any, Any]:
    """Mean and variance in the form of the input `mu_x`: tensors for a tensor, flat arrays for anything else."""
    return (out.mu, out.variance()) if isinstance(mu_x, Tensor) else _flat(out)


def _flat(value: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    return _array(value.mu.reshape(-1)), _array(value.variance().reshape(-1))


def _array(t: Tensor) -> np.ndarray:
    return (t.float() if t.dtype == torch.bfloat16 else t).cpu().numpy()  # NumPy has no bfloat16
