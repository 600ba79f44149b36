"""Geometry: pure integer arithmetic about grids, blocks and what moves between them. No processes, no "me"."""

from .box import Box as Box
from .box import Shape as Shape
from .copies import Copies as Copies
from .cuts import Cuts as Cuts
from .cuts import Interval as Interval
from .cuts import balanced_cuts as balanced_cuts
from .cuts import cuts_from_extents as cuts_from_extents
from .grid import Grid as Grid
from .grid import Index as Index
from .grid import resolve_axes as resolve_axes
from .groups import group_runs as group_runs
from .groups import groups_of as groups_of
from .layout import Boxes as Boxes
from .layout import Layout as Layout
from .route import Message as Message
from .route import Needs as Needs
from .route import Piece as Piece
from .route import Route as Route
from .route import route as route
from .window import Padding as Padding
from .window import adaptive_need as adaptive_need
from .window import adaptive_runs as adaptive_runs
from .window import hull_then_pad as hull_then_pad
from .window import leave_to_torch as leave_to_torch
from .window import transposed_need as transposed_need
from .window import window_need as window_need
