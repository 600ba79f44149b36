"""pytagi's network: Gridwise's, with flat buffers, parameters as tuples of lists, and the original's arithmetic.

`compat='cutagi'` is on: where the original does something deterministic that its formulas do not say, so does this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gridwise.errors import PartitionError
from gridwise.tagi.nn import sequential as own
from gridwise.tagi.nn.attention import MultiheadAttention
from gridwise.tagi.nn.base_layer import BaseLayer
from gridwise.tagi.nn.batch_norm import BatchNorm2d
from gridwise.tagi.nn.data_struct import BaseHiddenStates as GridwiseStates
from gridwise.tagi.nn.data_struct import of_anything
from gridwise.tagi.nn.gaussian import Gaussian
from gridwise.tagi.nn.layer_block import LayerBlock
from gridwise.tagi.nn.layer_norm import LayerNorm, RMSNorm
from gridwise.tagi.nn.pooling import AvgPool2d, MaxPool2d
from gridwise.tagi.nn.resnet_block import ResNetBlock

from ...notes import note
from .data_struct import BaseDeltaStates, BaseHiddenStates


class Sequential(own.Sequential):
    """Layers in a row; values in and out are flat arrays."""

    def __init__(self, *layers: BaseLayer) -> None:
        super().__init__(*layers, compat="cutagi")
        self._output, self._input_delta, self._output_delta = BaseHiddenStates(), BaseDeltaStates(), BaseDeltaStates()
        note(
            "pytagi.nn.Sequential",
            "computes as cuTAGI does, quirks included; net.set_compat(None), or gridwise.tagi, has the corrected formulas.",
        )

    def forward(self, mu_x: Any, var_x: Any = None) -> Any:
        """Flat means and variances of the output, for flat ones of the input or for another network's output buffer."""
        if isinstance(mu_x, Gaussian):
            return super().forward(mu_x)
        if isinstance(mu_x, GridwiseStates):
            states = mu_x.gaussian
            mu_x, var_x = states.mu.reshape(-1), states.variance().reshape(-1)
        mu = of_anything(mu_x).reshape(-1)
        rows = mu.reshape(-1, *self._shape_of_sample(mu.numel()))
        var = None if var_x is None else of_anything(var_x).reshape(-1)
        out = self.infer(self._input(rows, var))
        return tuple(t.reshape(-1).cpu().numpy() for t in (out.mu, out.variance()))

    def _shape_of_sample(self, values: int) -> tuple[int, ...]:
        """The shape of one sample of values that come in flat: as the first layer is, or says that it is."""
        first: BaseLayer = self
        while isinstance(first, LayerBlock | ResNetBlock):
            first = first.main_block if isinstance(first, ResNetBlock) else first.layers[0]
        if isinstance(first, MultiheadAttention):
            length = first.seq_len or values // first.embed_dim  # without a length it is one sequence
            first.seq_len = length
            return length, first.embed_dim
        if isinstance(first, LayerNorm | RMSNorm):
            return tuple(first.normalized_shape)
        if isinstance(first, BatchNorm2d):
            space = (first.in_height, first.in_width) if first.in_height * first.in_width else ()
            return (first.num_features, *space)
        if isinstance(first, AvgPool2d | MaxPool2d) and not first.input_size:
            first.input_size = first.in_channels * first.in_height * first.in_width
            if not first.input_size:
                raise PartitionError(
                    f"{first.get_layer_info()}: flat values came in, and the size of the images is not known.\n"
                    "  fix: set the layer's in_width, in_height and in_channels before."
                )
        try:
            return first.as_input(of_anything(np.zeros(values, np.float32))).shape[1:]
        except PartitionError:
            if values:
                raise
            return (max(first.input_size, 1),)

    # Parameters in pytagi's forms

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """{'Linear.0': (mu_w, var_w, mu_b, var_b)}, flat lists."""
        return super().state_dict(*args, **kwargs) if args or kwargs else self.pytagi_state_dict()

    def parameters(self, recurse: bool = True) -> Any:
        """[(mu_w, var_w, mu_b, var_b)] in forward order."""
        return self.pytagi_parameters()

    def params_from(self, other: own.Sequential) -> None:
        """Copy all parameters and running statistics of `other`."""
        source: Mapping[str, Any] = {**dict(other.named_parameters()), **dict(other.named_buffers())}
        mine = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        if source.keys() != mine.keys():
            raise PartitionError("params_from: the two networks have different layers.")
        for name, value in mine.items():
            value.data.copy_(source[name])

    @property
    def device(self) -> str:
        """Where the parameters are: 'cpu' or 'cuda'."""
        return next((p.device.type for _, p in self.named_parameters()), "cpu")

    @device.setter
    def device(self, value: str) -> None:
        self.to_device(value)
