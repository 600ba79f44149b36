"""DistDL's layers and primitives."""

from typing import Any

from . import loss as loss
from . import mixins as mixins
from .all_sum_reduce import AllSumReduce as AllSumReduce
from .batchnorm import DistributedBatchNorm as DistributedBatchNorm
from .broadcast import Broadcast as Broadcast
from .conv import DistributedConv1d as DistributedConv1d
from .conv import DistributedConv2d as DistributedConv2d
from .conv import DistributedConv3d as DistributedConv3d
from .conv_channel import DistributedChannelConv1d as DistributedChannelConv1d
from .conv_channel import DistributedChannelConv2d as DistributedChannelConv2d
from .conv_channel import DistributedChannelConv3d as DistributedChannelConv3d
from .conv_feature import DistributedFeatureConv1d as DistributedFeatureConv1d
from .conv_feature import DistributedFeatureConv2d as DistributedFeatureConv2d
from .conv_feature import DistributedFeatureConv3d as DistributedFeatureConv3d
from .conv_general import DistributedGeneralConv1d as DistributedGeneralConv1d
from .conv_general import DistributedGeneralConv2d as DistributedGeneralConv2d
from .conv_general import DistributedGeneralConv3d as DistributedGeneralConv3d
from .halo_exchange import HaloExchange as HaloExchange
from .interpolate import Interpolate as Interpolate
from .linear import DistributedLinear as DistributedLinear
from .loss import DistributedBCELoss as DistributedBCELoss
from .loss import DistributedBCEWithLogitsLoss as DistributedBCEWithLogitsLoss
from .loss import DistributedKLDivLoss as DistributedKLDivLoss
from .loss import DistributedL1Loss as DistributedL1Loss
from .loss import DistributedMSELoss as DistributedMSELoss
from .loss import DistributedPoissonNLLLoss as DistributedPoissonNLLLoss
from .module import Module as Module
from .padnd import PadNd as PadNd
from .pooling import DistributedAvgPool1d as DistributedAvgPool1d
from .pooling import DistributedAvgPool2d as DistributedAvgPool2d
from .pooling import DistributedAvgPool3d as DistributedAvgPool3d
from .pooling import DistributedMaxPool1d as DistributedMaxPool1d
from .pooling import DistributedMaxPool2d as DistributedMaxPool2d
from .pooling import DistributedMaxPool3d as DistributedMaxPool3d
from .repartition import Repartition as Repartition
from .sum_reduce import SumReduce as SumReduce
from .unpadnd import UnpadNd as UnpadNd
from .upsampling import DistributedUpsample as DistributedUpsample


def __getattr__(name: str) -> Any:
    if name == "DistributedTranspose":
        from . import transpose

        return transpose.DistributedTranspose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
