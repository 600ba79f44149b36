"""Gridwise: tensors on a Cartesian grid of workers; every movement is a linear operator with an exact adjoint.

The most used names are here. The rest is one import away: `gridwise.nn` (primitives and layers), `gridwise.data`,
`gridwise.fake` and `gridwise.deferred_init`, `gridwise.checkpoint`, `gridwise.tagi`, `gridwise.optim`, `gridwise.planning`,
`gridwise.testing`, `gridwise.show`.
"""

import importlib
from types import ModuleType

from . import aliases as aliases
from . import errors as errors
from . import grid as grid
from . import nn as nn
from . import show as show
from .comm.launching.find import guard as _guard
from .comm.launching.launch import launch as launch
from .comm.launching.local_device import device as device
from .models import CapturedStep as CapturedStep
from .models import DistributedModel as _DistributedModel
from .models import capture as capture
from .models import distribute as distribute
from .models.random import sequential_random as sequential_random
from .models.rules import register_rule as register_rule
from .nn.dtensor import from_dtensor as from_dtensor
from .nn.dtensor import mesh_from_partition as mesh_from_partition
from .nn.dtensor import partition_from_mesh as partition_from_mesh
from .nn.dtensor import to_dtensor as to_dtensor
from .nn.engine.agreement import agreement as agreement
from .nn.functional import gather as gather
from .nn.functional import scatter as scatter
from .nn.parameters.gradient_wire import gradient_wire as gradient_wire
from .nn.parameters.no_sync import no_sync as no_sync
from .nn.parameters.replicas import check_replicas as check_replicas
from .partition import CartesianPartition as CartesianPartition
from .partition import Partition as Partition
from .partition import local_slice as local_slice
from .partition import world as world
from .partition import zero_volume_tensor as zero_volume_tensor
from .planning import plan as plan
from .planning import trace as trace
from .show.describe import describe as describe
from .tiles import tiled as tiled
from .version import __version__ as __version__

_guard()

# The names they had in version 0.1
nn.distribute = distribute  # type: ignore[attr-defined]
nn.DistributedModel = _DistributedModel  # type: ignore[attr-defined]

_ROOMS = (
    "checkpoint",
    "compat",
    "data",
    "deferred_init",
    "fake",
    "integrations",
    "optim",
    "planning",
    "tagi",
    "testing",
)


def __getattr__(name: str) -> ModuleType:
    """Import the larger sub-packages on first use."""
    if name in _ROOMS:
        return importlib.import_module(f"gridwise.{name}")
    raise AttributeError(f"module 'gridwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS])
