"""DistDL's modules, names and argument orders, on Gridwise: see docs/from-distdl.md."""

from . import backend as backend
from . import backends as backends
from . import functional as functional
from . import nn as nn
from . import utilities as utilities

__version__ = "0.5.0-dev"
