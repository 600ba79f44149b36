"""pytagi's helpers: Gridwise's own, with the tree of classes as lists."""

from __future__ import annotations

from gridwise.tagi import tagi_utils as own
from gridwise.tagi.tagi_utils import Normalizer as Normalizer
from gridwise.tagi.tagi_utils import exponential_scheduler as exponential_scheduler

from .nn.data_struct import HRCSoftmax


class Utils(own.Utils):
    """`gridwise.tagi.Utils`."""

    def get_hierarchical_softmax(self, num_classes: int) -> HRCSoftmax:
        """The binary tree of `num_classes` classes."""
        return HRCSoftmax(super().get_hierarchical_softmax(num_classes))
