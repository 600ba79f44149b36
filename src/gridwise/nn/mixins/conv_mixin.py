"""The inputs that one output of a convolution reads: the same as for pooling (`pooling_mixin`)."""

from __future__ import annotations

from .pooling_mixin import PoolingMixin


class ConvMixin(PoolingMixin):
    """The first and last input of convolution windows.

    Examples
    --------
    >>> mixin = gridwise.nn.mixins.ConvMixin()
    >>> mixin._compute_min_input_range(2, 3, 2, 1, 1)
    3
    """
