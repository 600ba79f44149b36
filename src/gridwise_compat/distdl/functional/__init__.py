"""DistDL's functions that need no communication."""

from .interpolate import InterpolateFunction as InterpolateFunction
from .zero_volume_corrector import ZeroVolumeCorrectorFunction as ZeroVolumeCorrectorFunction
