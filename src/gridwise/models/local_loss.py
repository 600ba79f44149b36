"""Does the first backward come from a mean over this worker's block alone? Its gradients would be sums of local means.

The node of autograd at the model's output is asked once, in the first backward after a recording, and looks up through
the call of `backward` that it is in, from which loss it is reached. What Gridwise computed in between is global.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..comm.transports.base import Team, Transport
from ..errors import LocalLoss
from ..torch_internals.autograd import current_node, differentiated_now, function_of, is_mean

MOST = 10_000
"""How many nodes are looked at."""


def watch_for_local_loss(y: Tensor, transport: Transport, team: Team, what: str, seen: Callable[[], bool]) -> None:
    """Warn, on the first worker, if the first backward through `y` is that of a local mean; ``seen()`` says if it was."""

    def look(gradients: object) -> None:
        found = None if seen() else _local_mean(current_node())  # a closure over it would be a cycle
        if found is not None:
            text = (
                f"{what}: backward() comes from a mean over the block of each worker ({found}), and gradients are summed over "
                "the workers: they are not those of the mean over the whole. Compute the loss on the grid: "
                "gridwise.distribute(lambda x, y: F.mse_loss(model(x), y), P_x, y=model.P_y), or a loss such as "
                "gridwise.nn.DistributedMSELoss(model.P_y). A sum of local terms is right as it is."
            )
            with warnings.catch_warnings(record=transport.rank != team[0]):  # an error, if so filtered, is one on all
                warnings.warn(text, LocalLoss, stacklevel=2)

    node: Any = y.grad_fn
    node.register_prehook(look)


def _local_mean(target: Any) -> str | None:
    """The name of a mean of everything on a path from a number that is differentiated to `target`, all of it local."""
    left = [(root.grad_fn, "") for root in differentiated_now() if root.dim() == 0 and root.grad_fn is not None]
    visited = set(left)
    while left and len(visited) < MOST:
        node, mean = left.pop()
        if node is target:
            if mean:
                return mean
            continue
        if _is_ours(node):
            continue
        mean = mean or (node.name() if is_mean(node) else "")
        for following, _ in node.next_functions:
            if following is not None and (following, mean) not in visited:
                visited.add((following, mean))
                left.append((following, mean))
    return None


def _is_ours(node: Any) -> bool:
    kind = function_of(node)
    return kind is not None and kind.__module__.startswith("gridwise.")
