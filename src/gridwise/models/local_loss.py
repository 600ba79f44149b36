"""Does the first backward come from a mean over this worker's block alone? Its gradients would be sums of local means.

The node of autograd at the model's output is asked once, in the first backward after a recording, and looks up through
the call of `backward` that it is in, from which loss it is reached. What Gridwise computed in between is global.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..comm.transports.base import Team, Transport
from ..errors import LocalLoss

MEAN = 1
"""Torch's number for the reduction by a mean."""
MOST = 10_000
"""How many nodes are looked at."""
CALLS = {torch.autograd.backward.__code__: "tensors", torch.autograd.grad.__code__: "outputs"}
"""Where the roots are found while backward runs: the variable of each function that holds them."""


def watch_for_local_loss(y: Tensor, transport: Transport, team: Team, what: str, seen: Callable[[], bool]) -> None:
    """Warn, on the first worker, if the first backward through `y` is that of a local mean; ``seen()`` says if it was."""

    def look(gradients: object) -> None:
        found = None if seen() else _local_mean(torch._C._current_autograd_node())  # a closure over it would be a cycle
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
    left = [(root.grad_fn, "") for root in _roots() if root.dim() == 0 and root.grad_fn is not None]
    visited = set(left)
    while left and len(visited) < MOST:
        node, mean = left.pop()
        if node is target:
            if mean:
                return mean
            continue
        if _is_ours(node):
            continue
        mean = mean or (node.name() if _is_mean(node) else "")
        for following, _ in node.next_functions:
            if following is not None and (following, mean) not in visited:
                visited.add((following, mean))
                left.append((following, mean))
    return None


def _is_ours(node: Any) -> bool:
    kind = getattr(type(node), "_forward_cls", None)
    return kind is not None and kind.__module__.startswith("gridwise.")


def _is_mean(node: Any) -> bool:
    if node.name() == "MeanBackward1":
        return not node.metadata and all(len(each.shape) == 0 for each in getattr(node, "_input_metadata", ()))
    return node.name() == "MeanBackward0" or getattr(node, "_saved_reduction", None) == MEAN


def _roots() -> list[Tensor]:
    """The tensors that are being differentiated, on any thread: with CUDA, nodes run on another than the call."""
    found: list[Any] = []
    frames: list[FrameType | None] = [*sys._current_frames().values()]
    while frames:
        frame = frames.pop()
        if frame is not None:
            if frame.f_code in CALLS:
                given = frame.f_locals.get(CALLS[frame.f_code])
                found += given if isinstance(given, tuple | list) else [given]
            frames.append(frame.f_back)
    del frame  # it may be the frame of this call: a cycle
    return [x for x in found if isinstance(x, Tensor)]
