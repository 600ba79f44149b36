"""Gradients are summed apart from the tensors that autograd passes on, which other nodes may read later."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gridwise
from gridwise.comm.messages.requests import NOTHING, Request
from gridwise.nn.engine.operator import CallId
from gridwise.nn.parameters.blocks import ReplicatedBlock
from gridwise.nn.parameters.gradient_buckets import replicated_together


class SummedAtOnce(ReplicatedBlock):
    """The sum over two workers with the same gradients, there before anything else is read."""

    @property
    def adjoint(self) -> SummedAtOnce:
        return self

    def with_current_wire(self) -> SummedAtOnce:
        return self

    def begin(self, gradient: Tensor) -> Request:
        gradient.mul_(2)
        return NOTHING


@pytest.mark.parametrize("count", [1, 2])
def test_a_gradient_that_is_also_passed_elsewhere_is_not_overwritten(count: int) -> None:
    transport = gridwise.world().transport
    weights = [torch.ones(4, requires_grad=True) for _ in range(count)]
    other = torch.ones(4, requires_grad=True)
    tripled = 3 * other  # recorded before the sum, so its backward comes after it
    shared = replicated_together(weights, SummedAtOnce(transport, (transport.rank,), "sums"), CallId(1, 0))
    for weight in shared:
        tripled = tripled + weight  # backward gives both of them one tensor
    (tripled * torch.arange(4.0)).sum().backward()
    assert other.grad is not None
    assert other.grad.tolist() == [0, 3, 6, 9]
    for weight in weights:
        assert weight.grad is not None
        assert weight.grad.tolist() == [0, 2, 4, 6]
