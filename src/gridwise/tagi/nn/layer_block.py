"""Several layers as one: in sequence, or as two branches whose moments are added as if independent.

    mu = mu_main + mu_shortcut            var = var_main + var_shortcut

Both branches receive the same innovations, each through the Jacobian of its own last layer, and those of their common
input are added up. Without a shortcut the second branch is the input itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from ...errors import ArgumentError
from .base_layer import BaseLayer
from .gaussian import Gaussian, Innovation


class LayerBlock(BaseLayer):
    """Layers in sequence, as a branch of a `ResNetBlock` or a part of a `Sequential`.

    Parameters
    ----------
    *layers
        The layers, in forward order.

    Notes
    -----
    Each layer is a submodule named `<LayerName>.<position>`, so `state_dict()` has keys like `Linear.0.mu_w`.

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
                raise ArgumentError(
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


class ResNetBlock(BaseLayer):
    """main(x) + shortcut(x), or main(x) + x.

    Parameters
    ----------
    main_block
        A layer or a `LayerBlock`.
    shortcut
        The layer or `LayerBlock` of the second branch; None for the input itself.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.ResNetBlock(nn.LayerBlock(nn.Linear(3, 3), nn.ReLU())))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (6,)
    """

    def __init__(self, main_block: BaseLayer, shortcut: BaseLayer | None = None) -> None:
        super().__init__()
        self.main_block = main_block
        self.shortcut = shortcut

    def children_layers(self) -> Iterator[BaseLayer]:
        yield self.main_block
        if self.shortcut is not None:
            yield self.shortcut

    def as_input(self, flat: Tensor) -> Tensor:
        return self.main_block.as_input(flat)

    def forward(self, x: Gaussian) -> Gaussian:
        main = self.main_block.forward(x)
        side = x if self.shortcut is None else self.shortcut.forward(x)
        if main.mu.shape != side.mu.shape:
            raise ArgumentError(
                f"ResNetBlock: main block gives shape {tuple(main.mu.shape)}, the shortcut {tuple(side.mu.shape)}.\n"
                "  fix: a shortcut with the stride and the channels of the main block."
            )
        self._keep(main.jcb, side.jcb, x.mu.shape)
        if not self.input_size:
            self.input_size, self.output_size = x.mu.shape[1:].numel(), main.mu.shape[1:].numel()
        variances = [v for v in (main.var, side.var) if v is not None]
        return Gaussian(main.mu + side.mu, sum(variances[1:], variances[0]) if variances else None)

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        jcb_main, jcb_side, shape = self._recall()
        main = self.main_block.backward(delta.through(jcb_main), need_input)
        if self.shortcut is None:
            side: Innovation | None = delta.through(jcb_side)
        else:
            side = self.shortcut.backward(delta.through(jcb_side), need_input)
        if not need_input:
            return None
        assert main is not None
        assert side is not None
        return main.reshape(*shape).plus(side.reshape(*shape))

    def get_layer_info(self) -> str:
        return f"ResNetBlock({self.input_size},{self.output_size})"
