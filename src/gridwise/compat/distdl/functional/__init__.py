"""DistDL's functions of one worker."""

from .zero_volume_corrector import ZeroVolumeCorrectorFunction as ZeroVolumeCorrectorFunction
