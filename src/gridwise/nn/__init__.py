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
from .cross_entropy import DistributedCrossEntropyLoss as DistributedCrossEntropyLoss
from .cross_entropy import DistributedNLLLoss as DistributedNLLLoss
from .loss import DistributedBCELoss as DistributedBCELoss
from .loss import DistributedBCEWithLogitsLoss as DistributedBCEWithLogitsLoss
from .loss import DistributedHuberLoss as DistributedHuberLoss
from .loss import DistributedKLDivLoss as DistributedKLDivLoss
from .loss import DistributedL1Loss as DistributedL1Loss
from .loss import DistributedMSELoss as DistributedMSELoss
from .loss import DistributedPoissonNLLLoss as DistributedPoissonNLLLoss
from .loss import DistributedSmoothL1Loss as DistributedSmoothL1Loss
