"""DistDL's functions of autograd, over the workers of partitions that the caller has made."""

from .all_sum_reduce import AllSumReduceFunction as AllSumReduceFunction
from .broadcast import BroadcastFunction as BroadcastFunction
from .halo_exchange import HaloExchangeFunction as HaloExchangeFunction
from .repartition import RepartitionFunction as RepartitionFunction
from .sum_reduce import SumReduceFunction as SumReduceFunction
