"""Pictures and tables, where people would rather look than read."""

from ..progress import progress as progress
from .owners import owners as owners
from .planned import planned as planned
