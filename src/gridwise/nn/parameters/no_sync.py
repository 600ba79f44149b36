"""Gradients of several backwards, summed over the workers once: a switch, as in torch's DistributedDataParallel.

    in the body      backward adds this worker's part of each gradient to `.grad`
    the next one     adds what is there to its own part, and sums both: `.grad` is then complete

Linear as the sum is, that is the sum of the sums. A gradient that is a part only is never taken for a complete one: the step
of an optimiser refuses it, and the body refuses to add a part to a complete one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...comm.switch import Switch
from ...errors import PartitionError
from ...torch_internals.autograd import backward_number

PARTIAL = "_partial_gradient"
"""Set on a parameter whose `.grad` is this worker's part."""
ADDED = "_added_by_backward"
"""Set on a parameter: the number of the last backward that has reached it, and what that adds."""
_sums = Switch(True)


def sums_gradients() -> bool:
    """Whether backward of what is called now sums the gradients of parameters."""
    return _sums.value


def no_sync() -> AbstractContextManager[None]:
    """Leave out the sum of gradients in backward through models that are called in the body, for accumulation.

    The first backward through a call outside of it sums what has been accumulated along with its own, so that one sum per
    step remains. The setting is read when a model is called, and must be the same on all workers. It concerns models made by
    `gridwise.distribute` and their whole parameters: gradients of cut ones are summed by blocks in each backward, as only a
    block is kept. Inside, use `backward`: what `torch.autograd.grad` returns is this worker's part.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> model = gridwise.distribute(torch.nn.Linear(3, 2), P_x)
    >>> with gridwise.no_sync():
    ...     model(torch.ones(4, 3)).sum().backward()
    >>> model(torch.ones(4, 3)).sum().backward()
    """
    return _sums.to(False)


def is_partial(parameter: Tensor) -> bool:
    return parameter.grad is not None and getattr(parameter, PARTIAL, False)


def note_partial(parameters: Sequence[Tensor]) -> None:
    """Note that this worker's parts are about to be added to the gradients of parameters."""
    for parameter in parameters:
        if parameter.grad is not None and not is_partial(parameter):
            raise PartitionError(
                "no_sync: a parameter has a complete gradient already, to which parts of it cannot be added.",
                fix="zero_grad() before the first backward under no_sync.",
            )
        _check_alike(parameter, "parts")
        setattr(parameter, PARTIAL, True)


def take_partial(parameter: Tensor) -> Tensor | None:
    """This worker's part of a gradient that is about to be summed, which is no longer in `.grad`; None if there is none."""
    found = parameter.grad if is_partial(parameter) else None
    _check_alike(parameter, "sums")
    if found is not None:
        parameter.grad = None
    setattr(parameter, PARTIAL, False)
    return found


def _check_alike(parameter: Tensor, kind: str) -> None:
    """Raise if this backward adds both parts and sums to a gradient."""
    number, before = getattr(parameter, ADDED, (None, kind))
    if number == backward_number() and before != kind:
        raise PartitionError(
            "no_sync: one backward goes through calls of a model inside and outside of no_sync, and adds parts and sums.",
            fix="a backward of its own for what was called under no_sync.",
        )
    setattr(parameter, ADDED, (backward_number(), kind))


def _refuse_partial(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Raise if a step would use parts; one with a closure, whose backward may sum them, is looked at after that."""
    me, *rest = args
    closure = rest[0] if rest else kwargs.get("closure")
    if closure is None:
        _check_complete(optimizer)
        return None

    def checked() -> Any:
        loss = closure()
        _check_complete(optimizer)
        return loss

    return ((me, checked, *rest[1:]), kwargs) if rest else (args, {**kwargs, "closure": checked})


def _check_complete(optimizer: torch.optim.Optimizer) -> None:
    count = sum(is_partial(parameter) for group in optimizer.param_groups for parameter in group["params"])
    if count:
        raise PartitionError(
            f"{count} gradients are parts that no backward has summed over the workers (gridwise.no_sync).",
            fix="call the model for the last backward before step() outside of no_sync.",
        )


register_optimizer_step_pre_hook(_refuse_partial)
