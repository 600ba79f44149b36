"""pytagi's layers, networks, buffers and updater."""

from .base_layer import BaseLayer as BaseLayer
from .data_struct import BaseDeltaStates as BaseDeltaStates
from .data_struct import BaseHiddenStates as BaseHiddenStates
from .data_struct import HRCSoftmax as HRCSoftmax
from .ddp import DDPConfig as DDPConfig
from .ddp import DDPSequential as DDPSequential
from .layers import *  # noqa: F403
from .output_updater import OutputUpdater as OutputUpdater
from .sequential import Sequential as Sequential
