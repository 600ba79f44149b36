"""Layers, networks and updaters of TAGI, under pytagi's names."""

import typing as _typing

from ...aliases import moved_modules as _moved_modules
from ..inference.train_step import TrainStep as TrainStep
from .activation import ClosedFormSoftmax as ClosedFormSoftmax
from .activation import EvenExp as EvenExp
from .activation import Exp as Exp
from .activation import LeakyReLU as LeakyReLU
from .activation import MixtureReLU as MixtureReLU
from .activation import MixtureSigmoid as MixtureSigmoid
from .activation import MixtureTanh as MixtureTanh
from .activation import ReLU as ReLU
from .activation import Remax as Remax
from .activation import Sigmoid as Sigmoid
from .activation import Softmax as Softmax
from .activation import Softplus as Softplus
from .activation import SplitActivation as SplitActivation
from .activation import Tanh as Tanh
from .agvi import AGVI as AGVI
from .attention import MultiheadAttention as MultiheadAttention
from .base_layer import BaseLayer as BaseLayer
from .batch_norm import BatchNorm2d as BatchNorm2d
from .conv2d import Conv2d as Conv2d
from .conv2d import ConvTranspose2d as ConvTranspose2d
from .data_struct import BaseDeltaStates as BaseDeltaStates
from .data_struct import BaseHiddenStates as BaseHiddenStates
from .data_struct import HRCSoftmax as HRCSoftmax
from .ddp import DDPConfig as DDPConfig
from .ddp import DDPSequential as DDPSequential
from .embedding import Embedding as Embedding
from .gaussian import Gaussian as Gaussian
from .gaussian import Innovation as Innovation
from .layer_block import LayerBlock as LayerBlock
from .layer_block import ResNetBlock as ResNetBlock
from .layer_norm import LayerNorm as LayerNorm
from .layer_norm import RMSNorm as RMSNorm
from .linear import Linear as Linear
from .linear import SLinear as SLinear
from .lstm import LSTM as LSTM
from .output_updater import OutputUpdater as OutputUpdater
from .pooling import AvgPool2d as AvgPool2d
from .pooling import MaxPool2d as MaxPool2d
from .sequential import Sequential as Sequential
from .slstm import SLSTM as SLSTM

if not _typing.TYPE_CHECKING:
    __getattr__ = _moved_modules(__name__)
