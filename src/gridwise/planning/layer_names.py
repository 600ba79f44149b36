"""The layer that a computation or a message belongs to, from the text that describes it.

conv2d in layer1.0, model.py:12, in forward:  ...       layer1.0
the adjoint of conv2d in layer1.0, ...                  layer1.0
the gradient of layer1.0.weight, and more, of the ...   gradients: layer1.0.weight
the gather of layer1.0.weight, and more, of the ...     parameters: layer1.0.weight
"""

from __future__ import annotations

import re
from functools import cache

OUTSIDE = "outside the model"
"""The layer of what is called outside the model: the loss, the optimiser."""
ADJOINT = "the adjoint of "
OF_PARAMETERS = {"the gradient of ": "gradients", "the gather of ": "parameters"}
"""How most descriptions of what is sent in backward begin."""
OPERATOR = re.compile(r"(?P<name>[\w.]+?)(\.\w+)?( in (?P<module>[\w.]+))?, [^:]+:\d+, in ")
"""How an operator of a recorded model is described: "conv2d in layer1.0, model.py:12, in forward:  ..."."""


@cache
def layer_of(what: str) -> str:
    """Where something is computed or sent, in short: the module that calls the operator, or else the operator."""
    for start, kind in OF_PARAMETERS.items():
        if what.startswith(start):
            return f"{kind}: {what.removeprefix(start).partition(' of the distributed ')[0].rstrip(',')}"
    plain = what.removeprefix(ADJOINT)
    operator = OPERATOR.match(plain)
    return operator["module"] or operator["name"] if operator else plain
