"""DistDL's functions of one worker."""

from .interpolate import InterpolateFunction as InterpolateFunction
from .zero_volume_corrector import ZeroVolumeCorrectorFunction as ZeroVolumeCorrectorFunction
