"""Indexing by tensors that workers cannot do each for itself; all else is an operator on boxes."""

from __future__ import annotations

from ...errors import UnsupportedError
from .by_needs import by_needs
from .call import Call, NoRule, Placed
from .table import rule


@rule("embedding")
def embedding(call: Call) -> Placed:
    """Rows of a table."""
    if call["sparse"]:
        raise UnsupportedError(
            f"{call.name}: sparse gradients cannot be summed over the workers.\n  fix: sparse=False."
        )
    if call["scale_grad_by_freq"] and call.cut:
        raise NoRule("its gradient counts how often each index occurs in all blocks")
    return by_needs(call)


@rule("embedding_renorm_", "embedding_renorm")
def embedding_renorm(call: Call) -> Placed:
    """Refused: rows that occur on some workers only would be scaled on those workers only."""
    raise UnsupportedError(
        f"{call.name}: `max_norm` scales the rows of the table that the indices of each block name.\n  fix: max_norm=None."
    )


rule("take_along_dim")(by_needs)
