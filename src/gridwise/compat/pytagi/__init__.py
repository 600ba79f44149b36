"""pytagi's modules, names and data formats, on Gridwise: see docs/from-pytagi.md."""

from gridwise.tagi import HRCSoftmax as HRCSoftmax
from gridwise.tagi import HRCSoftmaxMetric as HRCSoftmaxMetric
from gridwise.tagi import Normalizer as Normalizer
from gridwise.tagi import Utils as Utils
from gridwise.tagi import exponential_scheduler as exponential_scheduler
from gridwise.tagi import manual_seed as manual_seed

__version__ = "0.2.1"
