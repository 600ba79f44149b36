"""Activations: Gridwise's own."""

from gridwise.tagi.nn.activation import ClosedFormSoftmax as ClosedFormSoftmax
from gridwise.tagi.nn.activation import EvenExp as EvenExp
from gridwise.tagi.nn.activation import LeakyReLU as LeakyReLU
from gridwise.tagi.nn.activation import MixtureReLU as MixtureReLU
from gridwise.tagi.nn.activation import MixtureSigmoid as MixtureSigmoid
from gridwise.tagi.nn.activation import MixtureTanh as MixtureTanh
from gridwise.tagi.nn.activation import ReLU as ReLU
from gridwise.tagi.nn.activation import Remax as Remax
from gridwise.tagi.nn.activation import Sigmoid as Sigmoid
from gridwise.tagi.nn.activation import Softmax as Softmax
from gridwise.tagi.nn.activation import Softplus as Softplus
from gridwise.tagi.nn.activation import Tanh as Tanh
