"""TAGI on batch x space grids: halos of moments forward, of innovations backward, sums of parameters over the grid."""

from .sequential import GridSequential as GridSequential
from .sequential import on_grid as on_grid
