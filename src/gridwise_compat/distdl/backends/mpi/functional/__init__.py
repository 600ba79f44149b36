"""DistDL's autograd functions, over the workers of partitions that the caller has made."""

from .functions import AllSumReduceFunction as AllSumReduceFunction
from .functions import BroadcastFunction as BroadcastFunction
from .functions import HaloExchangeFunction as HaloExchangeFunction
from .functions import RepartitionFunction as RepartitionFunction
from .functions import SumReduceFunction as SumReduceFunction
