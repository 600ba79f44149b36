"""Clip gradients by their global norm: each element of the global model counts once.

    total = (sum over all parameters of |g|^p)^(1/p)

A block is counted by its owner, the first of its holders. One number is summed over the workers, and all of them scale by
the same factor. `torch.nn.utils.clip_grad_norm_` and `get_total_norm`, which trainers call (Lightning, Accelerate),
take gradients without their parameters. They are patched to look these up: if any is in blocks, the norm is global.
Then all workers that hold blocks must call them, and each under its own name: one that computes a norm alone (to log
it) is named, rather than taken for one that clips.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...comm.agreement import check_same_call
from ...comm.transports.base import Team, Transport
from ...errors import PartitionError, UnsupportedError
from ...partition import Partition, world
from ...torch_internals.autograd import replace_total_norm, total_norm_by_torch
from ..engine.all_max import all_max
from .blocks import BlockParameter, Sharding, holders_of_blocks, placement_of


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

    Every worker of `P` calls it, even one that holds no parameters.

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
    norm_type = float(norm_type)  # torch takes "inf" too
    held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    partition = P or world()
    transport, team = partition.transport, partition.team
    grads = [p.grad for p in held if p.grad is not None]
    counted = [p.grad for p in held if p.grad is not None and _counts(p, transport, team[0])]
    total = _summed(counted, norm_type, transport, team, "clip_grad_norm_")
    _refuse_nonfinite(total, norm_type, error_if_nonfinite)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    if grads:
        torch._foreach_mul_([g.detach() for g in grads], float(factor))
    return total.to(grads[0]) if grads else total.to(torch.get_default_dtype())


def _counts(parameter: Tensor, transport: Transport, first: int) -> bool:
    """Whether this worker is the holder that counts its part of a parameter."""
    layout = placement_of(parameter)
    return transport.rank == first if layout is None else transport.rank in layout.grid


def _summed(counted: Sequence[Tensor], norm_type: float, transport: Transport, team: Team, what: str) -> Tensor:
    """The norm of all gradients, each counted by one worker of the team; `what` they call."""
    if not norm_type > 0:
        raise PartitionError(f"`norm_type` (={norm_type}) must be positive; infinity is the largest element.")
    check_same_call(transport, team, what, what)
    norms = torch.tensor(
        [float(torch.linalg.vector_norm(g, norm_type)) for g in counted if g.numel()], dtype=torch.float64, device="cpu"
    )
    if math.isinf(norm_type):
        largest = norms.max() if len(norms) else norms.new_zeros(())
        return all_max(largest.nan_to_num(math.nan, math.inf), transport, team, what)
    return transport.all_sum(norms.pow(norm_type).sum(), team, what) ** (1 / norm_type)


def _refuse_nonfinite(total: Tensor, norm_type: float, wanted: bool) -> None:
    if wanted and not torch.isfinite(total):
        raise RuntimeError(
            f"the total norm of order {norm_type} of the gradients is {float(total)}, so it cannot be clipped.\n"
            "  fix: look for the layer that makes it so, or set `error_if_nonfinite` to False."
        )


# Torch's own functions


def _total_norm(
    what: str,
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    norm_type, given = float(norm_type), [tensors] if isinstance(tensors, Tensor) else list(tensors)
    known = _gradients_of_blocks() if holders_of_blocks else {}
    found = [known.get(id(g)) or known.get(_address(g)) for g in given] if known else []
    blocks = [(g, *block) for g, block in zip(given, found, strict=bool(known)) if block is not None]
    if not blocks:
        return total_norm_by_torch(given, norm_type, error_if_nonfinite, foreach)
    transport = blocks[0][2]
    if any(other is not transport for _, _, other in blocks):
        raise UnsupportedError(
            "the gradients are of layers in different worlds (gridwise.world(comm)), which have no norm in common.\n"
            "  fix: clip the parameters of each world for themselves."
        )
    others = [g for g, block in zip(given, found, strict=True) if block is None]  # whole on every worker
    team = tuple(sorted({rank for _, sharding, _ in blocks for rank in sharding.holders.ranks}))
    team = transport.everyone if others else team
    counted = [g for g, sharding, _ in blocks if transport.rank in sharding.layout.grid]
    total = total_norm_by_torch(others, norm_type, False, foreach).double().cpu()
    if transport.rank in team:
        of_blocks = _summed(counted, norm_type, transport, team, what)
        total = torch.linalg.vector_norm(torch.stack([total, of_blocks]), norm_type)
    _refuse_nonfinite(total, norm_type, error_if_nonfinite)
    return total.to(given[0])


def _gradients_of_blocks() -> dict[Any, tuple[Sharding, Transport]]:
    """The gradients of all parameters in blocks, zero-volume ones too, by their `id` and by their memory."""
    known: dict[Any, tuple[Sharding, Transport]] = {}
    for module, transport in list(holders_of_blocks.items()):
        for name, sharding in module.__dict__["_shardings"].items():
            parameter = module._parameters.get(name)
            if isinstance(parameter, BlockParameter) and parameter.placement is not None and parameter.grad is not None:
                known[id(parameter.grad)] = sharding, transport
                if parameter.grad.numel():
                    known[_address(parameter.grad)] = sharding, transport
    return known


def _address(gradient: Tensor) -> tuple[Any, ...]:
    return gradient.device, gradient.data_ptr(), gradient.shape


@functools.wraps(total_norm_by_torch)
def _norm_to_clip_by(*args: Any, **kwargs: Any) -> Tensor:
    return _total_norm("clip_grad_norm_", *args, **kwargs)


@functools.wraps(total_norm_by_torch)
def _public_total_norm(*args: Any, **kwargs: Any) -> Tensor:
    return _total_norm("torch.nn.utils.get_total_norm", *args, **kwargs)


replace_total_norm(_norm_to_clip_by, _public_total_norm)
