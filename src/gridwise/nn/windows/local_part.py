"""A worker's part in a local operator of one tensor: fetch what its block of the output needs, and compute that.

    needs     which box of the input the outputs of each worker see, as the operator says (`operators`)
    call      fetch the box        one movement
              run the operator     local
    backward  no code: each step has an exact adjoint

What torch saves of the fetched box is replaced (`saved_input`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...grid import Box, Layout, Needs, Shape, route
from ...operators.formats import memory_format_of
from ...operators.on_boxes import Local
from ...operators.on_grids import needs_of_blocks
from ..engine.autocast import dtype_of_products
from ..engine.carrier import Margins
from ..engine.operator import CallId, apply, saving_node
from .fetch import Fetch
from .saved_input import FetchedInput


@dataclass(frozen=True)
class LocalPart:
    """What one worker does. Its gradient must not read the values of its input, only its shape."""

    block: Box
    """This worker's outputs."""
    fetch: Fetch | None
    """None where every worker needs exactly what it owns."""
    run: Callable[[Tensor], Any]

    @classmethod
    def of(
        cls, transport: Transport, team: Team, name: str, operator: Local, source: Layout, target: Layout
    ) -> LocalPart:
        """The part of this worker in `operator`, for an input and an output with these layouts."""
        (needs,) = needs_of_blocks(operator.needs, target)
        block = target.block(transport.rank)
        run = operator.on(block) if block.volume else partial(operator.run, block)
        return cls.fetching(transport, team, name, needs, run, source, target)

    @classmethod
    def fetching(
        cls,
        transport: Transport,
        team: Team,
        name: str,
        needs: Needs,
        run: Callable[[Tensor], Any],
        source: Layout,
        target: Layout,
        margins: Margins | None = None,
        fill: float = 0.0,
        fresh_gradients: bool = True,
    ) -> LocalPart:
        """The part that fetches `needs`, with filled margins around them; None if no worker has any (see `Fetch`)."""
        rank = transport.rank
        block, shape = target.block(rank), (source.block(rank).shape[0], 0)
        if margins is None and needs == Needs.of_layout(source):
            return cls(block, None, run)
        options = margins or (), fill, fresh_gradients
        plan = route(source, needs, rank)
        return cls(block, Fetch(transport, team, name, plan, lambda x: x.new_empty(shape), *options), run)

    def __call__(self, x: Tensor, call_id: CallId, records: bool) -> Any:
        """The outputs; `records`: whether autograd records the call, the same on all workers.

        A worker without outputs gets an empty tensor that depends on `x`.
        """
        fetch = self.fetch
        if fetch is None:
            box = x.detach().requires_grad_() if records and not x.requires_grad else x
        else:
            box = apply(x, fetch, call_id, records)
        if not self.block.volume:
            return empty_output(self.block.shape, box)
        if fetch is None or fetch.is_identity or not box.numel():
            y = self.run(box)
        else:
            y = FetchedInput(x, fetch, box, None, False).computed(self.run)
        return tuple(_dense(each, x) for each in y) if isinstance(y, tuple) else _dense(y, x)


def _dense(y: Tensor, x: Tensor) -> Tensor:
    """`y`, which may be a part of what torch made, without gaps, in the memory format of `x`."""
    if y.is_contiguous() or memory_format_of(y) is not torch.contiguous_format:
        return y
    return y.contiguous(memory_format=memory_format_of(x))


def empty_output(shape: Shape, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """A tensor that depends on the arguments as a layer's output does, without calling torch's; zero if it has volume.

    So a worker with nothing to compute enters the same adjoints and sums as all others, of first and second order: the
    output is linear in `x`, in `weight` and in `bias`.
    """
    total = x.sum(dtype=x.dtype)
    if weight is not None:
        total = total * weight.sum().to(x.dtype)
    if bias is not None:
        total = total + (bias[:0].sum() if math.prod(shape) else bias.sum()).to(x.dtype)
    return saving_node(total.to(x.dtype if weight is None else dtype_of_products(x))).expand(shape)
