"""DistDL's layers and primitives."""

from typing import Any

from . import loss as loss
from . import mixins as mixins
from .batchnorm import DistributedBatchNorm as DistributedBatchNorm
from .conv import *  # noqa: F403
from .halo_exchange import HaloExchange as HaloExchange
from .interpolate import Interpolate as Interpolate
from .linear import DistributedLinear as DistributedLinear
from .loss import *  # noqa: F403
from .module import Module as Module
from .padding import PadNd as PadNd
from .padding import UnpadNd as UnpadNd
from .pooling import *  # noqa: F403
from .primitives import AllSumReduce as AllSumReduce
from .primitives import Broadcast as Broadcast
from .primitives import Repartition as Repartition
from .primitives import SumReduce as SumReduce
from .upsampling import DistributedUpsample as DistributedUpsample


def __getattr__(name: str) -> Any:
    if name == "DistributedTranspose":
        from . import primitives

        return primitives.DistributedTranspose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
