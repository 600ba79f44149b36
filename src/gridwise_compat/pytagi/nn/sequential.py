"""pytagi's network: Gridwise's, with flat buffers, parameters as tuples of lists, and the original's arithmetic.

`compat='cutagi'` is on: where the original deterministically deviates from its formulas, so does this network.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from gridwise.errors import ArgumentError
from gridwise.tagi.nn import sequential as own
from gridwise.tagi.nn.attention import MultiheadAttention
from gridwise.tagi.nn.base_layer import BaseLayer as GridwiseLayer
from gridwise.tagi.nn.batch_norm import BatchNorm2d
from gridwise.tagi.nn.data_struct import BaseHiddenStates as GridwiseStates
from gridwise.tagi.nn.data_struct import of_anything
from gridwise.tagi.nn.layer_block import LayerBlock, ResNetBlock
from gridwise.tagi.nn.layer_norm import LayerNorm, RMSNorm
from gridwise.tagi.nn.pooling import AvgPool2d, MaxPool2d

from ...notes import note
from .base_layer import BaseLayer, wrapped
from .data_struct import BaseDeltaStates, BaseHiddenStates
from .sizes import note_sizes


class Sequential(BaseLayer):
    """A sequence of layers; inputs and outputs are flat arrays."""

    _wraps = own.Sequential
    _noted_for: Any = None  # the shape of a sample, when sizes were noted
    _z_buffer_size: int | None = None
    _after_another: bool = False  # whether the last input was another network's output

    def __init__(self, *layers: BaseLayer) -> None:
        super().__init__(*layers, compat="cutagi")
        net = self._layer
        net.output_z_buffer, net._input_delta = BaseHiddenStates(), BaseDeltaStates()
        net.output_delta_z_buffer = BaseDeltaStates()
        note(
            "pytagi.nn.Sequential",
            "computes as cuTAGI does, quirks included; net.set_compat(None), or gridwise.tagi, has the corrected formulas.",
        )

    @property
    def layers(self) -> list[BaseLayer]:
        """The layers, in forward order."""
        return [wrapped(layer) for layer in self._layer.layers]

    def forward(self, mu_x: object, var_x: object = None) -> Any:
        """Flat means and variances of the output, for flat ones of the input or for another network's output buffer."""
        self._after_another = isinstance(mu_x, GridwiseStates)
        jcb = None
        if isinstance(mu_x, GridwiseStates):
            mu_x, var_x, jcb = mu_x.gaussian
        mu = of_anything(mu_x).reshape(-1)
        shape = self._shape_of_sample(mu.numel())
        if mu.numel() % math.prod(shape):
            raise ArgumentError(
                f"Sequential: an input of {mu.numel()} values is not a whole number of samples of shape "
                f"{tuple(shape)}.\n  fix: pass (batch, *{tuple(shape)}) values."
            )
        rows = mu.reshape(-1, *shape)
        var = None if var_x is None else of_anything(var_x).reshape(-1)
        x = self._layer._input(rows, var)
        if jcb is not None:  # that of the other network's last activation, which backward does not apply there
            x = x._replace(jcb=jcb.to(x.mu).reshape(x.mu.shape))
        with torch.no_grad():
            out = self._layer.infer(x)
        if self._noted_for != shape:
            note_sizes(self._layer.layers)
            self._noted_for = shape
        if (delta := self._layer.input_delta_z_buffer).size != out.mu.numel():
            delta.set_size(out.mu.numel(), out.mu.shape[0])
        return tuple(t.reshape(-1).cpu().numpy() for t in (out.mu, out.variance()))

    def __call__(self, mu_x: object, var_x: object = None) -> Any:
        return self.forward(mu_x, var_x)

    def backward(self) -> None:
        """Compute the innovations of all layers, and of the input if it was another network's output."""
        net = self._layer
        asked = net.input_state_update
        net.input_state_update = asked or self._after_another
        try:
            net.backward()
        finally:
            net.input_state_update = asked

    def _shape_of_sample(self, values: int) -> tuple[int, ...]:
        """The shape of one sample of a flat input, as the first layer expects it."""
        first: GridwiseLayer = self._layer
        while isinstance(first, LayerBlock | ResNetBlock):
            first = first.main_block if isinstance(first, ResNetBlock) else first.layers[0]
        if isinstance(first, MultiheadAttention):
            length = first.seq_len or max(values // first.embed_dim, 1)  # without a length: one sequence
            return length, first.embed_dim
        if isinstance(first, LayerNorm | RMSNorm):
            return tuple(first.normalized_shape)
        if isinstance(first, BatchNorm2d):
            space = (first.in_height, first.in_width) if first.in_height * first.in_width else ()
            return (first.num_features, *space)
        if isinstance(first, AvgPool2d | MaxPool2d) and not first.input_size:
            first.input_size = first.in_channels * first.in_height * first.in_width
            if not first.input_size:
                raise ArgumentError(
                    f"{first.get_layer_info()}: flat values came in, and the size of the images is not known.\n"
                    "  fix: set the layer's in_width, in_height and in_channels before."
                )
        try:
            return first.as_input(of_anything(np.zeros(values, np.float32))).shape[1:]
        except ArgumentError:
            if values:
                raise
            return (max(first.input_size, 1),)

    # Parameters in pytagi's formats

    def state_dict(self) -> dict[str, tuple[list[float], ...]]:
        """{'Linear.0': (mu_w, var_w, mu_b, var_b)}, flat lists."""
        return self._layer.pytagi_state_dict()

    def parameters(self) -> list[tuple[list[float], ...]]:
        """[(mu_w, var_w, mu_b, var_b)] in forward order."""
        return list(self.state_dict().values())

    def params_from(self, other: Sequential) -> None:
        """Copy all parameters and running statistics of `other`."""
        self._layer.params_from(other._layer)

    # What Gridwise's network does without

    @property
    def z_buffer_size(self) -> int:
        """Units of the widest layer times the batch size; informative only, no buffer has this size."""
        if self._z_buffer_size is not None:
            return self._z_buffer_size
        widest = max(max(layer.input_size, layer.output_size) for layer in self._layer.leaves())
        return widest * max(self.z_buffer_block_size, 1)

    @z_buffer_size.setter
    def z_buffer_size(self, value: int) -> None:
        self._z_buffer_size = value

    @property
    def z_buffer_block_size(self) -> int:
        """Number of samples in the last batch."""
        return self._layer.output_z_buffer.block_size

    def output_to_host(self) -> list[float]:
        """The means of the last output as a list."""
        return self._layer.get_outputs()[0].tolist()

    def delta_z_to_host(self) -> list[float]:
        """The innovations of the means of the output as a list."""
        return self._layer.input_delta_z_buffer.innovation.mu.reshape(-1).tolist()

    def set_threads(self, num_threads: int) -> None:
        """Set the number of CPU threads that torch uses in this process."""
        torch.set_num_threads(num_threads)

    def preinit_layer(self) -> None:
        """Do nothing: parameters exist from the start."""

    def to_device(self, device: str) -> None:
        """Move the network: 'cpu', 'cuda', 'cuda:1'."""
        self._layer.to(device)

    def params_to_device(self) -> None:
        self.to_device("cuda")

    def params_to_host(self) -> None:
        self.to_device("cpu")

    @property
    def device(self) -> str:
        """Where the parameters are: 'cpu' or 'cuda'."""
        return next((p.device.type for p in self._layer.parameters()), "cpu")

    @device.setter
    def device(self, value: str) -> None:
        self.to_device(value)
