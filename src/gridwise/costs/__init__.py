"""What computing costs: figures of machines, and what torch's kernels allocate and waste.

machine        a machine as a few numbers, from a TOML file; `machines/`: those that are shipped
convolutions   the workspace of a convolution, and the work that it wastes
"""

from .convolutions import Convolution as Convolution
from .machine import Machine as Machine
from .machine import find_machine as find_machine
from .machine import read_machine as read_machine
