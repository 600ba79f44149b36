"""Operators that users define in Python, with a rule of their own: recorded, placed, and differentiated."""

from __future__ import annotations

import torch
from torch import Tensor

import gridwise
from gridwise.models.rules import pointwise
from gridwise.testing import workers

from .own_operators import by_custom_op, by_library


@workers(1, 2, transports=("gloo",))
def test_operators_defined_in_python_run_by_their_rule():
    P_x = gridwise.world().create_cartesian_topology_partition([1, gridwise.world().size])
    for defined in (by_library, by_custom_op):
        kept, operator = defined()
        gridwise.register_rule(operator, pointwise)

        def function(x: Tensor, operator=operator) -> Tensor:
            return operator(x).sum(1)

        distributed = gridwise.distribute(function, P_x)
        whole = torch.arange(10.0).reshape(2, 5)
        expected = function(whole)
        y = distributed(gridwise.scatter(whole, P_x))
        torch.testing.assert_close(y, gridwise.scatter(expected, distributed.P_y))
        assert not distributed.report().gathers
        del kept
    whole = whole.requires_grad_()  # the last one has a gradient
    function(whole).sum().backward()
    x = gridwise.scatter(whole.detach(), P_x).requires_grad_()
    distributed(x).sum().backward()
    torch.testing.assert_close(x.grad, gridwise.scatter(whole.grad, P_x))
