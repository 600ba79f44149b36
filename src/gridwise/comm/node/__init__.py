"""Workers of one machine: memory that they share, mailboxes and a board in it, and sums and agreements over those.

The same for every transport. Over MPI, whose own small messages are fast, only large ones come this way; over gloo all do.
"""

from .mailboxes import NodeError as NodeError
from .node import FEW as FEW
from .node import Node as Node
from .node import find_node as find_node
