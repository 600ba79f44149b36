"""Checkpoints that cannot be lost or misread: a repartition from a grid to files, and from files to any other grid."""

from .load import load as load
from .load import verify as verify
from .save import save as save
from .state import PerWorker as PerWorker
