"""Steps of a module that has distributed its parts itself: they run as they are written, on blocks.

What such a step logs has to be of the whole batch, as what a distributed function returns is: it is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...comm.agreement import gather_lines, key_of, opening
from ...errors import PartitionError
from ...partition import Partition
from .metrics import is_metric


@contextmanager
def comparing_logs(module: torch.nn.Module, P_x: Partition) -> Iterator[None]:
    """Let `self.log` raise on all workers if it gets another number on some of them."""
    own = vars(module).get("log")
    module.__dict__["log"] = partial(_log, own or module.log, P_x)
    try:
        yield
    finally:
        del module.__dict__["log"]
        if own is not None:
            module.__dict__["log"] = own


def _log(log: Any, P_x: Partition, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
    compare(value, P_x, f"self.log({name!r})")
    log(name, value, *args, **kwargs)


def compare(value: Any, P_x: Partition, what: str) -> None:
    """Raise on all workers if they give `what` different numbers."""
    text = _described(value)
    if len(P_x.team) > 1 and not opening(P_x.transport, P_x.team, what, key_of(what), key_of(text)).is_common:
        raise PartitionError(
            f"{what} got other numbers on some workers: those of their blocks.\n"
            + "".join(f"  {line}\n" for line in gather_lines(P_x.transport, P_x.team, text[:80]))
            + "  fix: compute it in a distributed function, gridwise.distribute(lambda x, y: ..., P_x), whose result is of the "
            "whole; a metric takes whole tensors, gridwise.nn.functional.all_gather(y, P_y, range(P_y.dim))."
        )


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return repr(value.detach().cpu().tolist())
    if is_metric(value):
        states = value.metric_state
        return "a metric of " + ", ".join(f"{key}: {_described(states[key])}" for key in sorted(states))
    if isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        return ", ".join(f"{key}: {_described(part)}" for key, part in parts)
    return repr(value)
