"""Operators whose outputs see windows of their input, or elements at other places.

one_dim                    windows along one dim: the rows that a range of outputs sees
convolution                convolutions; `transposed_convolution`
pooling                    maxima and averages; `adaptive_pooling`
padding                    padding of any mode
interpolation              up- and downsampling; `interpolation_weights`: rows and weights along one dim
unfolding                  windows as dims of their own, and their adjoint
rearranging                pixels to channels, rolls, flips; `sampling`: places that only values know
"""

from . import adaptive_pooling as adaptive_pooling
from . import convolution as convolution
from . import interpolation as interpolation
from . import padding as padding
from . import pooling as pooling
from . import rearranging as rearranging
from . import sampling as sampling
from . import transposed_convolution as transposed_convolution
from . import unfolding as unfolding
