"""Operators on boxes: what an operator does, said once, without workers and without a place where its tensors lie.

on_boxes     the kinds of operators, and what each has to say
call         one call of an ATen operator, with the shapes of its tensors; `functions`: torch's function for an operator
table        all operators, by the name of the ATen operator
labels       needs of operators whose dims have labels, as in einsum
pointwise    pointwise operators, conversions; `views`: the same elements under other dims
slicing      slices, splits, rows that are replaced; `joining`: concatenation, stacking, rows repeated
indexing     indexing by tensors
products     products and sums of products; `sums`: what is collected box by box
attention    scaled dot-product attention; `streamed_attention`: with keys and values block by block
transforms   softmax, sorting, Fourier transforms, matrices; `recurrent`: recurrent layers
reductions   sums, means, norms, variances; `running`: reductions with a running value
losses       losses: a term for each element, and their mean
on_grids     what workers need whose blocks of an output are cut by a grid
statistics   mean and variance over boxes, and normalisation by them; `norms`: batch, instance, group and layer norm
formats      half precision and memory formats
creation     tensors made from sizes and numbers
"""

from . import attention as attention
from . import creation as creation
from . import indexing as indexing
from . import joining as joining
from . import losses as losses
from . import norms as norms
from . import pointwise as pointwise
from . import products as products
from . import random as random
from . import recurrent as recurrent
from . import reductions as reductions
from . import running as running
from . import slicing as slicing
from . import transforms as transforms
from . import views as views
from . import windows as windows
