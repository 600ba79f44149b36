"""Recording: what a model does with inputs of one structure, as one flat graph of operators of global sizes.

recording    the result
export       torch.export, and nothing else that knows of it
containers   any nesting of tensors, taken apart and put together again
key          what a recording belongs to
"""

from .recording import Recording as Recording
from .recording import Region as Region
from .recording import Source as Source
