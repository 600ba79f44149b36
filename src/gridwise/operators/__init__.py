"""Operators on boxes: what an operator does, said once, without workers and without a place where its tensors lie.

on_boxes     the kinds of operators, and what each has to say
call         one call of an ATen operator, with the shapes of its tensors; `functions`: torch's function for an operator
table        all operators, by the name of the ATen operator
labels       needs of operators whose dims have labels, as in einsum
pointwise    pointwise operators, conversions; `views`: the same elements under other dims
slicing      slices, splits, rows that are replaced; `joining`: concatenation, stacking, rows repeated
indexing     indexing by tensors
products     products and sums of products; `sums`: what is collected box by box
attention    scaled dot-product attention
transforms   softmax, sorting, Fourier transforms, matrices; `recurrent`: recurrent layers
reductions   sums, means, norms, variances; `running`: reductions with a running value
losses       losses: a term for each element, and their mean
windows      windows along one dim; `convolution`: convolutions, plain and transposed
windows      windows along one dim; `convolution`, `transposed_convolution`, `pooling`, `adaptive_pooling`, `padding`
interpolation  up- and downsampling; `interpolation_weights`: rows and weights along one dim
rearranging  pixels to channels, rolls, flips; `unfolding`: windows as dims; `sampling`: places that values know
on_grids     what workers need whose blocks of an output are cut by a grid
statistics   mean and variance over boxes, and normalisation by them; `norms`: batch, instance, group and layer norm
formats      half precision and memory formats
random       random operators; `random_stream`: their numbers; `random_numbers`: by a key and the index of an element
creation     tensors made from sizes and numbers
"""

from . import adaptive_pooling as adaptive_pooling
from . import attention as attention
from . import convolution as convolution
from . import creation as creation
from . import indexing as indexing
from . import interpolation as interpolation
from . import joining as joining
from . import losses as losses
from . import norms as norms
from . import padding as padding
from . import pointwise as pointwise
from . import pooling as pooling
from . import products as products
from . import random as random
from . import rearranging as rearranging
from . import recurrent as recurrent
from . import reductions as reductions
from . import running as running
from . import sampling as sampling
from . import slicing as slicing
from . import transforms as transforms
from . import transposed_convolution as transposed_convolution
from . import unfolding as unfolding
from . import views as views
