"""Clip gradients by their global norm: each element of the global model counts once.

    total = (sum over all parameters of |g|^p)^(1/p)

A block is counted by its owner, the first of its holders; a parameter that every worker holds by the first worker. One
number is summed over the workers, and all of them scale by the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ...comm.transport import Transport
from ...errors import PartitionError
from ...partition import Partition, world
from ..all_max import all_max
from ..parameter import BlockParameter


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    P: Partition | None = None,
) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` of the global model; returns the same total norm on every worker.

    Every worker of `P` calls it, also one that holds no parameters.

    Parameters
    ----------
    parameters, max_norm, norm_type, error_if_nonfinite, foreach : as in torch
    P : the workers that train the model; default: the world

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.ones(4))
    >>> w.sum().backward()
    >>> gridwise.nn.utils.clip_grad_norm_([w], max_norm=1.0)
    tensor(2.)
    """
    if not norm_type > 0:
        raise PartitionError(f"`norm_type` (={norm_type}) must be positive; infinity is the largest element.")
    held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    partition = P or world()
    transport, team = partition.transport, partition.team
    grads = [p.grad for p in held if p.grad is not None]
    counted = [p.grad for p in held if p.grad is not None and p.grad.numel() and _counts(p, transport, team[0])]
    norms = torch.tensor(
        [float(torch.linalg.vector_norm(g, norm_type)) for g in counted], dtype=torch.float64, device="cpu"
    )
    if math.isinf(norm_type):
        largest = norms.max() if counted else norms.new_zeros(())
        total = all_max(largest.nan_to_num(math.nan, math.inf), transport, team, "clip_grad_norm_")
    else:
        total = transport.all_sum(norms.pow(norm_type).sum(), team, "clip_grad_norm_") ** (1 / norm_type)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(
            f"the total norm of order {norm_type} of the gradients is {float(total)}, so it cannot be clipped.\n"
            "  fix: look for the layer that makes it so, or set `error_if_nonfinite` to False."
        )
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    if grads:
        torch._foreach_mul_([g.detach() for g in grads], float(factor))
    return total.to(grads[0]) if grads else total.to(torch.get_default_dtype())


def _counts(parameter: Tensor, transport: Transport, first: int) -> bool:
    """Whether this worker is the one that counts its part of a parameter."""
    layout = parameter.layout if isinstance(parameter, BlockParameter) else None
    return transport.rank == first if layout is None else transport.rank in layout.grid
