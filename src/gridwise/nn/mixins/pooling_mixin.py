"""The inputs that one output of a pooling layer reads: both ends of its window, in global indices.

    first = s i - p        last = s i - p + d (k - 1)

The origin of a pooling window is its upper left entry. Both ends may lie outside the tensor, in its padding. Every
argument is a number or an array with one entry per dim.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

Number = TypeVar("Number", int, np.ndarray)


class PoolingMixin:
    """The first and last input of pooling windows.

    Examples
    --------
    >>> mixin = gridwise.nn.mixins.PoolingMixin()
    >>> mixin._compute_min_input_range(2, 3, 2, 1, 1)
    3
    """

    def _compute_min_input_range(
        self, idx: Number, kernel_size: Number, stride: Number, padding: Number, dilation: Number
    ) -> Number:
        """The first input that output `idx` reads.

        >>> PoolingMixin()._compute_min_input_range(2, kernel_size=3, stride=2, padding=1, dilation=1)
        3
        """
        return stride * idx - padding

    def _compute_max_input_range(
        self, idx: Number, kernel_size: Number, stride: Number, padding: Number, dilation: Number
    ) -> Number:
        """The last input that output `idx` reads.

        >>> PoolingMixin()._compute_max_input_range(2, kernel_size=3, stride=2, padding=1, dilation=2)
        7
        """
        return stride * idx - padding + dilation * (kernel_size - 1)
