"""`index_tricks` under its other name."""

from .index_tricks import cartesian_index_c as cartesian_index_c
from .index_tricks import cartesian_index_f as cartesian_index_f
