"""Recording: what a model does with inputs of one structure, as one flat graph of operators of global sizes.

recording      the result
record         one call of a model, on fake tensors of the global shapes
tracing        all code that depends on torch's tracer
interception   what a graph would lose of a model's code: kept, or refused by name; `regions`: checkpoints and Functions;
               `hooks`: forward hooks that return nothing
checks         checks on values, whose one side only raises (`branches`)
gradients      gradients that the model's code asks for itself
numbers        what tensors that depend on no input hold, when the model's code asks; `keeping`: what it keeps of them
digest         checksums of recordings
lines          where in the user's code something happens, and whose error an error is
state          what modules hold, compared and restored
containers     any nesting of tensors, flattened and rebuilt; `contents`: what values were, compared and restored
indices        inputs that are indices of an embedding
memory_views   views in place, and of memory, as plain views and indexing
merged_rows    dims merged only for a `linear` stay apart
"""

from .recording import GraphRegion as GraphRegion
from .recording import Recording as Recording
from .recording import ValueSource as ValueSource
