"""What DistDL's layers need from a backend: partitions and a few helpers."""

from . import buffer as buffer
from . import compare as compare
from . import functional as functional
from . import partition as partition
from . import tensor_comm as tensor_comm
from .buffer import MPIBufferManager as BufferManager
from .buffer import MPIExpandableBuffer as ExpandableBuffer
from .partition import MPICartesianPartition as CartesianPartition
from .partition import MPIPartition as Partition
from .tensor_comm import assemble_global_tensor_structure as assemble_global_tensor_structure
from .tensor_comm import broadcast_tensor_structure as broadcast_tensor_structure

__all__ = ["BufferManager", "CartesianPartition", "ExpandableBuffer", "Partition"]

operation_map = {name: name for name in ("min", "max", "prod", "sum")}
