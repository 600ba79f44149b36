"""A residual block: the moments of two branches added, as if independent.

    mu = mu_main + mu_shortcut            var = var_main + var_shortcut

Both branches receive the same innovations, each through the Jacobian of its own last layer; those of their common
input are added up. Without a shortcut the input itself is the second branch.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ...errors import PartitionError
from .base_layer import BaseLayer
from .gaussian import Gaussian, Innovation


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
            raise PartitionError(
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
        main, side = main.reshape(*shape), side.reshape(*shape)
        return Innovation(main.mu + side.mu, main.var + side.var)

    def get_layer_info(self) -> str:
        return f"ResNetBlock({self.input_size},{self.output_size})"

    def extra_repr(self) -> str:
        return ""
