"""pytagi's modules, names and forms of data, on Gridwise: see docs/from-pytagi.md."""

from gridwise.tagi import manual_seed as manual_seed

from . import cuda as cuda
from . import metric as metric
from .metric import HRCSoftmaxMetric as HRCSoftmaxMetric
from .tagi_utils import HRCSoftmax as HRCSoftmax
from .tagi_utils import Normalizer as Normalizer
from .tagi_utils import Utils as Utils
from .tagi_utils import exponential_scheduler as exponential_scheduler

__version__ = "0.2.1"
