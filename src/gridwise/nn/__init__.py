"""Layers and the primitives that they are made of. Each primitive is a `Module` here and a function in `functional`."""

from . import functional as functional
from .agreement import agreement as agreement
from .all_gather import AllGather as AllGather
from .all_sum_reduce import AllSumReduce as AllSumReduce
from .broadcast import Broadcast as Broadcast
from .halo_exchange import HaloExchange as HaloExchange
from .module import Module as Module
from .reduce_scatter import ReduceScatter as ReduceScatter
from .repartition import Repartition as Repartition
from .sum_reduce import SumReduce as SumReduce
