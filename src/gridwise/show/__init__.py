"""Pictures of layouts and plans, tables of models, and progress bars."""

from ..progress import progress as progress
from .owners import owners as owners
from .planned import planned as planned
