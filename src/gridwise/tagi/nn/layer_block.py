"""Several layers as one layer: they run one after the other, and are trained wherever the block stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from ...errors import PartitionError
from .base_layer import BaseLayer
from .gaussian import Gaussian, Innovation


class LayerBlock(BaseLayer):
    """Layers in a row, to be the branch of a `ResNetBlock` or a part of a `Sequential`.

    Parameters
    ----------
    *layers
        The layers, in forward order.

    Notes
    -----
    Each layer is a submodule called `<LayerName>.<position>`, so `state_dict()` has `Linear.0.mu_w` and the like.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.LayerBlock(nn.Linear(3, 4), nn.ReLU()))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (8,)
    """

    def __init__(self, *layers: BaseLayer) -> None:
        super().__init__()
        self._register(layers)

    def _register(self, layers: Sequence[BaseLayer]) -> None:
        for position, layer in enumerate(layers):
            first = next(i for i, other in enumerate(layers) if other is layer)
            if first < position and not layer.reusable:
                raise PartitionError(
                    f"{type(self).__name__}: layer {position}, {layer.get_layer_info()}, is layer {first} again.\n"
                    "  fix: a layer of its own for each place; only activations may stand in several."
                )
            name = layer.get_layer_name()
            if name not in self._modules:
                self.add_module(name, nn.ModuleDict())
            group = self._modules[name]
            assert isinstance(group, nn.ModuleDict)
            group[str(position)] = layer
        self._order = [(layer.get_layer_name(), str(position)) for position, layer in enumerate(layers)]

    @property
    def layers(self) -> list[BaseLayer]:
        """The layers, in forward order."""
        return [self._modules[name][position] for name, position in self._order]  # type: ignore[index]

    def children_layers(self) -> Iterator[BaseLayer]:
        return iter(self.layers)

    def as_input(self, flat: Tensor) -> Tensor:
        return self.layers[0].as_input(flat)

    def forward(self, x: Gaussian) -> Gaussian:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        layers = self.layers
        back: Innovation | None = delta
        for position in range(len(layers) - 1, -1, -1):
            assert back is not None
            back = layers[position].backward(back, need_input or position > 0)
        return back

    def switch_to_cuda(self) -> None:
        self.to("cuda")

    def get_layer_info(self) -> str:
        return "LayerBlock(" + ", ".join(layer.get_layer_info() for layer in self.layers) + ")"

    def extra_repr(self) -> str:
        return ""
