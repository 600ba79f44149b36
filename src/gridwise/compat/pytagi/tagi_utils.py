"""Labels, windows and scales: Gridwise's own."""

from gridwise.tagi.tagi_utils import HRCSoftmax as HRCSoftmax
from gridwise.tagi.tagi_utils import Normalizer as Normalizer
from gridwise.tagi.tagi_utils import Utils as Utils
from gridwise.tagi.tagi_utils import exponential_scheduler as exponential_scheduler
