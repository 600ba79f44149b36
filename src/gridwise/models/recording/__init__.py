"""Recording: what a model does with inputs of one structure, as one flat graph of operators of global sizes.

recording      the result
record         one call of a model, on fakes of the global shapes
tracing        torch's tracer, and nothing else that knows of it
interception   what a graph would lose of a model's code: kept, or refused by name; `regions`: checkpoints and Functions
state          what modules hold, compared and put back
containers     any nesting of tensors, taken apart and put together again
indices        inputs that are indices of an embedding
"""

from .recording import GraphRegion as GraphRegion
from .recording import Recording as Recording
from .recording import ValueSource as ValueSource
