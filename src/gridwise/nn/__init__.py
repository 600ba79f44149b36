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
from .conv import DistributedChannelConv1d as DistributedChannelConv1d
from .conv import DistributedChannelConv2d as DistributedChannelConv2d
from .conv import DistributedChannelConv3d as DistributedChannelConv3d
from .conv import DistributedConv1d as DistributedConv1d
from .conv import DistributedConv2d as DistributedConv2d
from .conv import DistributedConv3d as DistributedConv3d
from .conv import DistributedFeatureConv1d as DistributedFeatureConv1d
from .conv import DistributedFeatureConv2d as DistributedFeatureConv2d
from .conv import DistributedFeatureConv3d as DistributedFeatureConv3d
from .conv import DistributedGeneralConv1d as DistributedGeneralConv1d
from .conv import DistributedGeneralConv2d as DistributedGeneralConv2d
from .conv import DistributedGeneralConv3d as DistributedGeneralConv3d
