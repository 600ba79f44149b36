"""pytagi's modules, names and data formats, on Gridwise: see docs/from-pytagi.md."""

from gridwise.tagi import HRCSoftmaxMetric as HRCSoftmaxMetric
from gridwise.tagi import manual_seed as manual_seed

from . import nn as nn
from .nn.data_struct import HRCSoftmax as HRCSoftmax
from .tagi_utils import Normalizer as Normalizer
from .tagi_utils import Utils as Utils
from .tagi_utils import exponential_scheduler as exponential_scheduler

__version__ = "0.2.1"
