"""Operators defined in Python; not in the test, which travels to the workers without torch's operators."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def by_library() -> tuple[torch.library.Library, object]:
    """The older way, without a gradient; the library is to be kept as long as its operators.

    Once in a process: torch 2.11 confuses an operator with one of the same name that is gone.
    """
    library = torch.library.Library("gridwise_tests_old", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    return library, torch.ops.gridwise_tests_old.twice


@cache
def by_custom_op() -> tuple[object, object]:
    @torch.library.custom_op("gridwise_tests_new::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x**3

    @cube.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    cube.register_autograd(lambda ctx, dy: 3 * ctx.saved_tensors[0] ** 2 * dy, setup_context=keep)
    return cube, torch.ops.gridwise_tests_new.cube
