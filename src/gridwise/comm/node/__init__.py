"""Communication between workers of one machine: shared memory with mailboxes and a board, and collectives on top.

The same for every transport. Over MPI, whose own small messages are fast, only large ones go this way; over gloo all do.
"""

from .mailboxes import NodeError as NodeError
from .node import FEW as FEW
from .node import Node as Node
from .node import find_node as find_node
