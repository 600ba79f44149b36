"""Rules, by kind of operator: where the tensors of a call must lie, where its outputs then lie, and what computes them.

Importing a file of rules enters them into the table.
"""

from . import attention as attention
from . import convolutions as convolutions
from . import creation as creation
from . import diagonals as diagonals
from . import indexing as indexing
from . import joining as joining
from . import losses as losses
from . import norms as norms
from . import on_boxes as on_boxes
from . import planes as planes
from . import products as products
from . import random as random
from . import reductions as reductions
from . import reshaping as reshaping
from . import searching as searching
from . import transforms as transforms
from .call import Call as Call
from .call import NoRule as NoRule
from .call import Placed as Placed
from .pointwise import pointwise as pointwise
from .table import register_rule as register_rule
from .table import rule_for as rule_for
