"""Gridwise: tensors on a Cartesian grid of workers; every movement is a linear operator with an exact adjoint."""

from . import errors as errors
from . import grid as grid
from . import nn as nn
from . import show as show
from .comm.launch import launch as launch
from .nn.agreement import agreement as agreement
from .nn.functional import gather as gather
from .nn.functional import scatter as scatter
from .partition import CartesianPartition as CartesianPartition
from .partition import Partition as Partition
from .partition import local_slice as local_slice
from .partition import world as world
from .partition import zero_volume_tensor as zero_volume_tensor

__version__ = "0.1.0"
