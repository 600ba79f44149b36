"""DistDL's helpers: slices, tensor structures, dtypes, indices."""

from . import debug as debug
from . import dtype as dtype
from . import index_tricks as index_tricks
from . import misc as misc
from . import slicing as slicing
from . import torch as torch
